/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Holding a connection back: stop reading from it, so that TCP stops its client and nobody else.
 *
 * Ganesha 4 has no flow control per connection: a client may have any number of requests parked,
 * each with its data in memory. A worker that waits would hold back everybody; JUKEBOX makes Linux
 * clients sleep for seconds. What works is not to read:
 *
 *     epoll: readable (one shot) --> xp_recv --gate shut--> remember, do not re-arm. The socket
 *                                       |                   fills, the window closes
 *                                       '--gate open---> the transport's own xp_recv
 *     gate opens: the transport's own xp_recv runs now, in a thread of its own (it may go on to
 *     process the request, like any worker), and re-arms.
 *
 * The transport's table of operations is replaced by a copy with our xp_recv, for connections that
 * were held once. The copy lives until the transport is destroyed.
 */
#include "fsal_dontcache.h"

struct gate {
	struct xp_ops ops; /* what xprt->xp_ops points to */
	struct xp_ops *own;
	SVCXPRT *xprt;
	int shut; /* holds minus opens; an open may overtake its hold. Written under gate_lock */
	bool pending; /* an event came while shut; it keeps a reference to xprt. Under gate_lock */
};

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */

static enum xprt_stat gate_recv(SVCXPRT *xprt);

static void gate_destroy(SVCXPRT *xprt, u_int flags, const char *tag, const int line)
{
	struct gate *g = container_of(xprt->xp_ops, struct gate, ops);
	struct xp_ops *own = g->own;

	__atomic_store_n(&xprt->xp_ops, own, __ATOMIC_RELEASE);
	own->xp_destroy(xprt, flags, tag, line);
	gsh_free(g);
}

/* gate_lock held */
static struct gate *gate_of(SVCXPRT *xprt)
{
	struct gate *g;

	if (xprt->xp_ops->xp_recv == gate_recv)
		return container_of(xprt->xp_ops, struct gate, ops);
	g = gsh_calloc(1, sizeof(*g));
	g->own = xprt->xp_ops;
	g->ops = *g->own;
	g->ops.xp_recv = gate_recv;
	g->ops.xp_destroy = gate_destroy;
	g->xprt = xprt;
	__atomic_store_n(&xprt->xp_ops, &g->ops, __ATOMIC_RELEASE);
	return g;
}

static enum xprt_stat gate_recv(SVCXPRT *xprt)
{
	struct gate *g = container_of(xprt->xp_ops, struct gate, ops);

	if (__atomic_load_n(&g->shut, __ATOMIC_ACQUIRE) > 0) {
		bool wait;

		pthread_mutex_lock(&gate_lock);
		wait = g->shut > 0;
		if (wait) {
			SVC_REF(xprt, SVC_REF_FLAG_NONE);
			g->pending = true;
		}
		pthread_mutex_unlock(&gate_lock);
		if (wait)
			return XPRT_IDLE;
	}
	return g->own->xp_recv(xprt);
}

static void *receive(void *arg)
{
	struct gate *g = arg;
	SVCXPRT *xprt = g->xprt;

	SetNameFunction("dc_gate");
	if (!(xprt->xp_flags & SVC_XPRT_FLAG_DESTROYED))
		g->own->xp_recv(xprt);
	SVC_RELEASE(xprt, SVC_RELEASE_FLAG_NONE);
	return NULL;
}

void *dcf_gate_connection(void)
{
	nfs_request_t *req;

	if (op_ctx->req_type != NFS_REQUEST)
		return NULL;
	req = container_of(op_ctx, nfs_request_t, op_context);
	return req->svc.rq_xprt;
}

static bool can_hold(SVCXPRT *xprt)
{
	return xprt && xprt->xp_type == XPRT_TCP;
}

void dcf_gate_hold(void *connection)
{
	if (!can_hold(connection))
		return;
	pthread_mutex_lock(&gate_lock);
	__atomic_add_fetch(&gate_of(connection)->shut, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&gate_lock);
}

void dcf_gate_open(void *unused, void *connection)
{
	struct gate *g;
	pthread_attr_t attr;
	pthread_t thread;
	bool go;

	(void)unused;
	if (!can_hold(connection))
		return;
	pthread_mutex_lock(&gate_lock);
	g = gate_of(connection);
	go = __atomic_sub_fetch(&g->shut, 1, __ATOMIC_RELEASE) <= 0 && g->pending;
	if (go)
		g->pending = false;
	pthread_mutex_unlock(&gate_lock);
	if (!go)
		return;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, receive, g) != 0)
		receive(g); /* late is better than never */
	pthread_attr_destroy(&attr);
}
