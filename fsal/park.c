/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A write that waits, without a thread.
 *
 * write2 returns without having called done_cb; Ganesha's worker suspends the request and goes on.
 * When the budget has room, one of the engine's executors carries the write out in an op context
 * made for it, with the request's credentials, and calls done_cb; Ganesha then has a worker reply.
 *
 * Why not in the request's own op context: the worker may still be unwinding through it. What is
 * copied from it points into the request, which stays until done_cb.
 */
#include "fsal_dontcache.h"

struct parked {
	struct dc_waiter waiter;
	struct dcf_export *e;
	struct fsal_obj_handle *h;
	bool bypass;
	fsal_async_cb done_cb;
	struct fsal_io_arg *io;
	void *caller_arg;
	uint64_t client;
	/* of the request's op context */
	struct gsh_export *ctx_export;
	struct user_cred creds;
	struct export_perms perms;
	struct gsh_client *gsh_client;
	sockaddr_t *caller_addr;
	uint32_t nfs_vers, nfs_minorvers;
};

static void run(struct dc_waiter *w, int status)
{
	struct parked *p = container_of(w, struct parked, waiter);
	struct req_op_context ctx;

	get_gsh_export_ref(p->ctx_export); /* dropped by release_op_context() */
	/* UNKNOWN_REQUEST: nobody may take this context for one inside a request. */
	init_op_context(&ctx, p->ctx_export, &p->e->export, p->caller_addr, p->nfs_vers,
			p->nfs_minorvers, UNKNOWN_REQUEST);
	ctx.creds = p->creds;
	ctx.export_perms = p->perms;
	ctx.client = p->gsh_client;
	if (status == 0)
		dcf_write_admitted(p->e, p->h, p->bypass, p->done_cb, p->io, p->caller_arg,
				   p->waiter.pages, p->client);
	else
		p->done_cb(p->h, fsalstat(ERR_FSAL_DELAY, 0), p->io, p->caller_arg);
	/* May drop the last reference to the export, and so end it in here. */
	release_op_context();
	gsh_free(p);
}

void dcf_park(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass, fsal_async_cb done_cb,
	      struct fsal_io_arg *io, void *caller_arg, uint64_t pages, size_t bytes)
{
	struct parked *p = gsh_calloc(1, sizeof(*p));
	void *connection = dcf_gate_connection();

	p->waiter.pages = pages;
	p->waiter.bytes = bytes;
	p->waiter.connection = connection;
	p->waiter.run = run;
	p->e = e;
	p->h = h;
	p->bypass = bypass;
	p->done_cb = done_cb;
	p->io = io;
	p->caller_arg = caller_arg;
	p->client = dcf_client_id();
	p->ctx_export = op_ctx->ctx_export;
	p->creds = op_ctx->creds;
	p->perms = op_ctx->export_perms;
	p->gsh_client = op_ctx->client;
	p->caller_addr = op_ctx->caller_addr;
	p->nfs_vers = op_ctx->nfs_vers;
	p->nfs_minorvers = op_ctx->nfs_minorvers;
	switch (dc_park(e->budget, &p->waiter)) {
	case DC_ADMITTED:
		gsh_free(p);
		dcf_write_admitted(e, h, bypass, done_cb, io, caller_arg, pages, dcf_client_id());
		break;
	case DC_PARKED:
		break;
	case DC_PARKED_HOLD:
		/* The write may be done already, but its request cannot end, nor the connection go,
		 * before this worker has returned from write2. */
		dcf_gate_hold(connection);
		break;
	case DC_REFUSED:
		gsh_free(p);
		done_cb(h, fsalstat(ERR_FSAL_DELAY, 0), io, caller_arg);
		break;
	}
}
