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
 *
 * Ganesha re-arms a connection as soon as it has a record whole, before the request is looked at: the
 * next one, a megabyte, would be in memory before the first could be parked and the gate shut. So
 * requests are received one at a time from each connection when a budget is nearly used up, and
 * when so many connections write that they keep every CPU busy anyhow.
 *
 * A held connection is not armed, so a client that vanishes would go unnoticed until a reply to it
 * fails, which the RPC library does not survive without leaking the connection. Held sockets are
 * therefore watched for a hang-up, and that opens the gate for good.
 */
#include "fsal_dontcache.h"

#include <sys/epoll.h>

struct gate {
	struct xp_ops ops; /* what xprt->xp_ops points to */
	struct xp_ops *own;
	SVCXPRT *xprt;
	uint64_t wrote;	      /* second of its last write; atomic */
	pthread_mutex_t lock; /* a leaf */
	/* under lock */
	int shut;	     /* holds minus opens; an open may overtake its hold */
	bool pending;	     /* an event came that has to wait; it keeps a reference to xprt */
	int receiving;	     /* threads inside own->xp_recv */
	uint64_t step_until; /* ns: one request at a time until then */
	bool gone;	     /* the client hung up: nothing is held any more */
	/* under watch_lock */
	bool watched;		 /* keeps a reference to xprt */
	struct glist_head watch; /* on watched */
};

#define SECOND 1000000000ULL

static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */

/* Connections that wrote in this and in the second before; under install_lock, read without. */
static struct {
	uint64_t second;
	uint32_t now, before;
} writers;

static enum xprt_stat gate_recv(SVCXPRT *xprt);

static void gate_destroy(SVCXPRT *xprt, u_int flags, const char *tag, const int line)
{
	struct gate *g = container_of(xprt->xp_ops, struct gate, ops);
	struct xp_ops *own = g->own;

	__atomic_store_n(&xprt->xp_ops, own, __ATOMIC_RELEASE);
	own->xp_destroy(xprt, flags, tag, line);
	pthread_mutex_destroy(&g->lock);
	gsh_free(g);
}

static struct gate *gate_of(SVCXPRT *xprt)
{
	struct xp_ops *ops = __atomic_load_n(&xprt->xp_ops, __ATOMIC_ACQUIRE);
	struct gate *g;

	if (ops->xp_recv == gate_recv)
		return container_of(ops, struct gate, ops);
	pthread_mutex_lock(&install_lock);
	ops = xprt->xp_ops;
	if (ops->xp_recv == gate_recv) {
		pthread_mutex_unlock(&install_lock);
		return container_of(ops, struct gate, ops);
	}
	g = gsh_calloc(1, sizeof(*g));
	pthread_mutex_init(&g->lock, NULL);
	g->own = ops;
	g->ops = *ops;
	g->ops.xp_recv = gate_recv;
	g->ops.xp_destroy = gate_destroy;
	g->xprt = xprt;
	__atomic_store_n(&xprt->xp_ops, &g->ops, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&install_lock);
	return g;
}

/* Do so many connections write that one request of each is enough to keep the CPUs busy? */
static bool crowded(void)
{
	static uint32_t enough;
	uint32_t n = __atomic_load_n(&writers.now, __ATOMIC_RELAXED);
	uint32_t before = __atomic_load_n(&writers.before, __ATOMIC_RELAXED);

	if (enough == 0) {
		long cpus = sysconf(_SC_NPROCESSORS_ONLN);

		enough = 2 * (cpus > 0 ? (uint32_t)cpus : 1);
	}
	return (n > before ? n : before) > enough;
}

static void note_write(struct gate *g, uint64_t second)
{
	if (__atomic_exchange_n(&g->wrote, second, __ATOMIC_RELAXED) == second)
		return;
	pthread_mutex_lock(&install_lock);
	if (writers.second != second) {
		__atomic_store_n(&writers.before, writers.second + 1 == second ? writers.now : 0,
				 __ATOMIC_RELAXED);
		__atomic_store_n(&writers.now, 0, __ATOMIC_RELAXED);
		writers.second = second;
	}
	__atomic_add_fetch(&writers.now, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&install_lock);
}

/* May an event be received now? If not, it waits. g->lock held. */
static bool may_receive(struct gate *g)
{
	if (g->gone)
		return true;
	if (g->shut > 0)
		return false;
	return g->receiving == 0 || !(crowded() || dcf_now(NULL) < g->step_until);
}

static __thread struct gate *receiving_from; /* counted in its `receiving` */

/* Receives, counted in g->receiving, and goes on with an event that had to wait meanwhile. Consumes
 * a reference for each such event. */
static enum xprt_stat receive(struct gate *g)
{
	SVCXPRT *xprt = g->xprt;
	enum xprt_stat stat;
	bool again;

	do {
		stat = XPRT_IDLE;
		receiving_from = g;
		if (!(xprt->xp_flags & SVC_XPRT_FLAG_DESTROYED))
			stat = g->own->xp_recv(xprt);
		pthread_mutex_lock(&g->lock);
		if (receiving_from) /* else it was let go on the way */
			g->receiving--;
		receiving_from = NULL;
		again = g->pending && may_receive(g);
		if (again) {
			g->pending = false;
			g->receiving++;
		}
		pthread_mutex_unlock(&g->lock);
		if (again)
			SVC_RELEASE(xprt, SVC_RELEASE_FLAG_NONE); /* the caller has one too */
	} while (again);
	return stat;
}

static enum xprt_stat gate_recv(SVCXPRT *xprt)
{
	struct gate *g = container_of(xprt->xp_ops, struct gate, ops);
	bool go;

	pthread_mutex_lock(&g->lock);
	go = may_receive(g);
	if (go) {
		g->receiving++;
	} else {
		SVC_REF(xprt, SVC_REF_FLAG_NONE);
		g->pending = true;
	}
	pthread_mutex_unlock(&g->lock);
	return go ? receive(g) : XPRT_IDLE;
}

/* A thread of its own for an event that waited; its reference is ours. */
static void *resume(void *arg)
{
	struct gate *g = arg;
	SVCXPRT *xprt = g->xprt;

	SetNameFunction("dc_gate");
	receive(g);
	SVC_RELEASE(xprt, SVC_RELEASE_FLAG_NONE);
	return NULL;
}

/* Has an event that waited received now, if it may be. */
static void reopen(struct gate *g)
{
	pthread_attr_t attr;
	pthread_t thread;
	bool go;

	pthread_mutex_lock(&g->lock);
	go = g->pending && may_receive(g);
	if (go) {
		g->pending = false;
		g->receiving++;
	}
	pthread_mutex_unlock(&g->lock);
	if (!go)
		return;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, resume, g) != 0)
		resume(g); /* late is better than never */
	pthread_attr_destroy(&attr);
}

/* ---- watching held connections for a hang-up ---- */

static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER; /* before gate.lock */
static struct glist_head watched = GLIST_HEAD_INIT(watched);
static int watch_fd = -1;

static void *watch_thread(void *unused)
{
	struct epoll_event ev;

	SetNameFunction("dc_watch");
	for (;;) {
		struct glist_head *at;
		struct gate *g = NULL;

		if (epoll_wait(watch_fd, &ev, 1, -1) <= 0)
			continue;
		/* The pointer is only compared: the gate may be gone by now. */
		pthread_mutex_lock(&watch_lock);
		glist_for_each(at, &watched) {
			g = glist_entry(at, struct gate, watch);
			if (g == ev.data.ptr)
				break;
			g = NULL;
		}
		if (g) {
			pthread_mutex_lock(&g->lock);
			g->gone = true;
			pthread_mutex_unlock(&g->lock);
			SVC_REF(g->xprt, SVC_REF_FLAG_NONE);
		}
		pthread_mutex_unlock(&watch_lock);
		if (g) {
			SVCXPRT *xprt = g->xprt;

			reopen(g);
			SVC_RELEASE(xprt, SVC_RELEASE_FLAG_NONE);
		}
	}
	return unused;
}

/* Best effort: without a watch a hang-up is noticed when the gate opens. */
static void watch(struct gate *g)
{
	struct epoll_event ev = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = g };
	pthread_t thread;
	bool shut;

	pthread_mutex_lock(&watch_lock);
	if (watch_fd < 0) {
		watch_fd = epoll_create1(EPOLL_CLOEXEC);
		if (watch_fd >= 0 && pthread_create(&thread, NULL, watch_thread, NULL) == 0) {
			pthread_detach(thread);
		} else if (watch_fd >= 0) {
			close(watch_fd);
			watch_fd = -1;
		}
	}
	/* It may have been opened meanwhile, and then nobody would end the watch. */
	pthread_mutex_lock(&g->lock);
	shut = g->shut > 0;
	pthread_mutex_unlock(&g->lock);
	if (shut && watch_fd >= 0 && !g->watched &&
	    epoll_ctl(watch_fd, EPOLL_CTL_ADD, g->xprt->xp_fd, &ev) == 0) {
		SVC_REF(g->xprt, SVC_REF_FLAG_NONE);
		g->watched = true;
		glist_add_tail(&watched, &g->watch);
	}
	pthread_mutex_unlock(&watch_lock);
}

static void unwatch(struct gate *g)
{
	SVCXPRT *xprt = g->xprt;
	bool was;

	pthread_mutex_lock(&watch_lock);
	was = g->watched;
	if (was) {
		/* Fails harmlessly if the socket is closed already. */
		epoll_ctl(watch_fd, EPOLL_CTL_DEL, xprt->xp_fd, NULL);
		glist_del(&g->watch);
		g->watched = false;
	}
	pthread_mutex_unlock(&watch_lock);
	if (was)
		SVC_RELEASE(xprt, SVC_RELEASE_FLAG_NONE);
}

/* ---- holding ---- */

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
	struct gate *g;

	if (!can_hold(connection))
		return;
	g = gate_of(connection);
	pthread_mutex_lock(&g->lock);
	g->shut++;
	pthread_mutex_unlock(&g->lock);
	watch(g);
}

void dcf_gate_let_go(void)
{
	struct gate *g = receiving_from;

	/* Executors and other threads are not inside a receive. */
	if (!g)
		return;
	receiving_from = NULL;
	pthread_mutex_lock(&g->lock);
	g->receiving--;
	pthread_mutex_unlock(&g->lock);
	reopen(g);
}

void dcf_gate_install(void)
{
	void *connection = dcf_gate_connection();

	if (can_hold(connection))
		gate_of(connection);
}

void dcf_gate_write(bool near_limit)
{
	void *connection = dcf_gate_connection();
	uint64_t now;
	struct gate *g;

	if (!can_hold(connection))
		return;
	g = gate_of(connection);
	now = dcf_now(NULL);
	note_write(g, now / SECOND);
	if (near_limit) {
		pthread_mutex_lock(&g->lock);
		g->step_until = now + SECOND;
		pthread_mutex_unlock(&g->lock);
	}
}

void dcf_gate_open(void *unused, void *connection)
{
	struct gate *g;

	(void)unused;
	if (!can_hold(connection))
		return;
	g = gate_of(connection);
	pthread_mutex_lock(&g->lock);
	g->shut--;
	pthread_mutex_unlock(&g->lock);
	unwatch(g);
	reopen(g);
}
