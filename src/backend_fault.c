/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The fault backend: stands before another one and spoils what the rules of fault.h say.
 *
 * An error replaces the result of an operation that was done. What is delayed or hangs is kept here
 * before it is submitted; the flusher's wait is cut short to look at it again.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dontcache/backend.h"
#include "dontcache/fault.h"
#include "internal.h"

#define LOOK_NS (10 * DC_NS_PER_MS) /* how often what hangs is looked at */

struct kept {
	struct dc_op *op;
	uint64_t due, generation; /* due UINT64_MAX: when the rules are not those any more */
	struct kept *next;
};

struct faulty {
	struct dc_backend be;
	struct dc_backend *inner;
	struct dc_fault *f;
	uint64_t clock; /* ns, at the last look */
	struct kept *kept;
};

static enum dc_fault_op kind_of(const struct dc_op *op)
{
	switch (op->kind) {
	case DC_OP_WRITEBACK:
		return DC_FAULT_WRITEBACK;
	case DC_OP_SYNC:
		return DC_FAULT_SYNC;
	case DC_OP_DROP:
		break;
	}
	return DC_FAULT_DROP;
}

static void submit(struct dc_backend *be, struct dc_op *op)
{
	struct faulty *fb = (struct faulty *)be;
	struct dc_fault_hit hit;
	struct kept *k;

	op->injected = 0;
	if (dc_fault_decide(fb->f, kind_of(op), op->offset, op->len, &hit)) {
		op->injected = hit.err;
		if (hit.delay_ns > 0) {
			k = dc_zalloc(sizeof(*k));
			k->op = op;
			k->due = hit.delay_ns == UINT64_MAX ? UINT64_MAX : fb->clock + hit.delay_ns;
			k->generation = hit.generation;
			k->next = fb->kept;
			fb->kept = k;
			return;
		}
	}
	fb->inner->ops->submit(fb->inner, op);
}

static void submit_due(struct faulty *fb)
{
	struct kept **at = &fb->kept, *k;

	while ((k = *at)) {
		if (k->due > fb->clock && k->generation == dc_fault_generation(fb->f)) {
			at = &k->next;
			continue;
		}
		*at = k->next;
		fb->inner->ops->submit(fb->inner, k->op);
		free(k);
	}
}

static uint64_t real_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * DC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static struct dc_op *wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct faulty *fb = (struct faulty *)be;
	struct dc_op *done, *op;
	int64_t slice = timeout_ns;

	fb->clock = real_ns();
	submit_due(fb);
	if (fb->kept && (slice < 0 || slice > (int64_t)LOOK_NS))
		slice = LOOK_NS;
	done = fb->inner->ops->wait(fb->inner, slice);
	for (op = done; op; op = op->next) {
		if (op->injected)
			op->res = op->injected;
		op->injected = 0;
	}
	return done;
}

static void wake(struct dc_backend *be)
{
	struct faulty *fb = (struct faulty *)be;

	fb->inner->ops->wake(fb->inner);
}

static int sync_(struct dc_backend *be, int fd)
{
	struct faulty *fb = (struct faulty *)be;
	struct dc_fault_hit hit = { 0 };
	int res;

	if (dc_fault_decide(fb->f, DC_FAULT_SYNC, 0, 0, &hit))
		dc_fault_delay(fb->f, &hit);
	res = fb->inner->ops->sync(fb->inner, fd);
	return hit.err ? hit.err : res;
}

static int writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct faulty *fb = (struct faulty *)be;
	struct dc_fault_hit hit = { 0 };
	int res;

	if (dc_fault_decide(fb->f, DC_FAULT_WRITEBACK, offset, len, &hit))
		dc_fault_delay(fb->f, &hit);
	res = fb->inner->ops->writeback(fb->inner, fd, offset, len);
	return hit.err ? hit.err : res;
}

static void drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct faulty *fb = (struct faulty *)be;

	fb->inner->ops->drop(fb->inner, fd, offset, len);
}

static int cachestat(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
		     struct dc_cachestat *st)
{
	struct faulty *fb = (struct faulty *)be;

	if (!fb->inner->ops->cachestat)
		return -ENOSYS;
	return fb->inner->ops->cachestat(fb->inner, fd, offset, len, st);
}

static int error(struct dc_backend *be, int fd)
{
	struct faulty *fb = (struct faulty *)be;

	return fb->inner->ops->error(fb->inner, fd);
}

static int reopen(struct dc_backend *be, int fd)
{
	struct faulty *fb = (struct faulty *)be;

	return fb->inner->ops->reopen(fb->inner, fd);
}

static void free_(struct dc_backend *be)
{
	struct faulty *fb = (struct faulty *)be;

	dc_assert(!fb->kept);
	fb->inner->ops->free(fb->inner);
	free(fb);
}

/* The name is made of the inner one's, once for each that there is. */
static const char *name_of(const char *inner)
{
	return strcmp(inner, "io_uring") == 0 ? "fault(io_uring)" :
	       strcmp(inner, "threads") == 0  ? "fault(threads)" :
						"fault";
}

struct dc_backend *dc_backend_fault(struct dc_backend *inner, struct dc_fault *f)
{
	struct faulty *fb = dc_zalloc(sizeof(*fb) + sizeof(struct dc_backend_ops));
	struct dc_backend_ops *ops = (struct dc_backend_ops *)(fb + 1);

	*ops = (struct dc_backend_ops){
		.name = name_of(inner->ops->name),
		.submit = submit,
		.wait = wait,
		.wake = wake,
		.sync = sync_,
		.writeback = writeback,
		.drop = drop,
		.cachestat = cachestat,
		.error = error,
		.reopen = reopen,
		.free = free_,
	};
	fb->be.ops = ops;
	fb->inner = inner;
	fb->f = f;
	fb->clock = real_ns();
	return &fb->be;
}
