/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A write that is answered by another thread than the one that received it: parked until the budget
 * has room, or stable and on its way to the device.
 *
 * write2 returns without having called done_cb; Ganesha's worker suspends the request and goes on.
 * Whoever carries the write out, or answers it, makes an op context for it, with the request's credentials, and calls
 * done_cb; Ganesha then has a worker reply.
 *
 * Why not in the request's own op context: the worker may still be unwinding through it. What is
 * copied from it points into the request, which stays until done_cb.
 */
#include "fsal_dontcache.h"

struct dcf_request *dcf_request_new(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass,
				    fsal_async_cb done_cb, struct fsal_io_arg *io, void *caller_arg)
{
	struct dcf_request *r = gsh_calloc(1, sizeof(*r));

	r->e = e;
	r->h = h;
	r->bypass = bypass;
	r->done_cb = done_cb;
	r->io = io;
	r->caller_arg = caller_arg;
	r->client = dcf_client_id();
	r->ctx_export = op_ctx->ctx_export;
	r->creds = op_ctx->creds;
	r->perms = op_ctx->export_perms;
	r->gsh_client = op_ctx->client;
	r->caller_addr = op_ctx->caller_addr;
	r->nfs_vers = op_ctx->nfs_vers;
	r->nfs_minorvers = op_ctx->nfs_minorvers;
	return r;
}

void dcf_request_context(struct dcf_request *r, struct req_op_context *ctx)
{
	get_gsh_export_ref(r->ctx_export); /* dropped by release_op_context() */
	/* UNKNOWN_REQUEST: nobody may take this context for one inside a request. */
	init_op_context(ctx, r->ctx_export, &r->e->export, r->caller_addr, r->nfs_vers,
			r->nfs_minorvers, UNKNOWN_REQUEST);
	ctx->creds = r->creds;
	ctx->export_perms = r->perms;
	ctx->client = r->gsh_client;
}

void dcf_request_free(struct dcf_request *r)
{
	gsh_free(r);
}

/* ---- parking ---- */

static void run_parked(struct dc_waiter *w, int status)
{
	struct dcf_request *r = container_of(w, struct dcf_request, waiter);
	struct req_op_context ctx;

	dcf_request_context(r, &ctx);
	if (status == 0)
		dcf_write_admitted(r->e, r->h, r->bypass, r->done_cb, r->io, r->caller_arg,
				   r->waiter.pages, r->client, r);
	else
		r->done_cb(r->h, fsalstat(ERR_FSAL_DELAY, 0), r->io, r->caller_arg);
	/* May drop the last reference to the export, and so end it in here. */
	release_op_context();
	if (status != 0)
		dcf_request_free(r); /* the write does, otherwise */
}

/* Parks it; what cannot be is answered. Once it is parked it may be carried out, and *r be gone. */
static void park(struct dcf_request *r, uint64_t pages, void *connection)
{
	struct fsal_obj_handle *h = r->h;
	fsal_async_cb done_cb = r->done_cb;
	struct fsal_io_arg *io = r->io;
	void *caller_arg = r->caller_arg;

	r->waiter.pages = pages;
	r->waiter.connection = connection;
	switch (dc_park(r->e->budget, &r->waiter)) {
	case DC_ADMITTED:
		dcf_write_admitted(r->e, h, r->bypass, done_cb, io, caller_arg, pages, r->client,
				   r);
		break;
	case DC_PARKED:
		break;
	case DC_PARKED_HOLD:
		/* The write may be done already, but its request cannot end, nor the connection go,
		 * before this worker has returned from write2. */
		dcf_gate_hold(connection);
		break;
	case DC_REFUSED:
		dcf_request_free(r);
		done_cb(h, fsalstat(ERR_FSAL_DELAY, 0), io, caller_arg);
		break;
	}
}

void dcf_park_again(struct dcf_request *r, uint64_t pages)
{
	/* It was read already, and its connection may be gone by now: not to be held, nor let go. */
	park(r, pages, NULL);
}

void dcf_park(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass, fsal_async_cb done_cb,
	      struct fsal_io_arg *io, void *caller_arg, uint64_t pages, size_t bytes)
{
	struct dcf_request *r = dcf_request_new(e, h, bypass, done_cb, io, caller_arg);

	r->waiter.bytes = bytes;
	r->waiter.client = DC_CLIENT_HOST(r->client);
	r->waiter.run = run_parked;
	park(r, pages, dcf_gate_connection());
}
