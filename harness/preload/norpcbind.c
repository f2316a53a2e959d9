/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Preload for ganesha.nfsd: registering with the portmapper does nothing and succeeds.
 *
 * A server under test has fixed ports, which its clients are told. With this, NFSv3 and MOUNT
 * work where no rpcbind runs, and where one runs its entries stay as they are: without it, any
 * Ganesha that stops removes the NFS entries of every other server on the machine.
 */
#include <stdbool.h>

bool svc_reg(void *xprt, unsigned program, unsigned version, void *dispatch, void *config);
bool rpcb_unset(unsigned program, unsigned version, const void *config);

bool svc_reg(void *xprt, unsigned program, unsigned version, void *dispatch, void *config)
{
	(void)xprt;
	(void)program;
	(void)version;
	(void)dispatch;
	(void)config;
	return true;
}

bool rpcb_unset(unsigned program, unsigned version, const void *config)
{
	(void)program;
	(void)version;
	(void)config;
	return true;
}
