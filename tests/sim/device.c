/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Virtual devices: one operation after the other, each lasting what its bytes, its seek and the device's
 * speed at that time make of it. */
#include <errno.h>
#include <stdlib.h>

#include "sim.h"

/* The speed at t, and until when it stays so. */
static double rate_at(const struct sim_device *d, uint64_t t, uint64_t *until)
{
	double rate = d->rate;

	*until = SIM_NEVER;
	for (unsigned int i = 0; i < d->nr_steps; i++) {
		if (d->step[i].at <= t)
			rate = d->step[i].rate;
		else
			*until = dc_min_u64(*until, d->step[i].at);
	}
	if (d->every) {
		uint64_t half = d->every / 2, n = t / half;

		if (n % 2 && rate > d->low)
			rate = d->low;
		*until = dc_min_u64(*until, (n + 1) * half);
	}
	return rate;
}

static uint64_t finish_at(const struct sim_device *d, uint64_t t, double bytes)
{
	while (bytes > 0) {
		uint64_t until;
		double rate = rate_at(d, t, &until), can;

		if (rate <= 0) {
			if (until == SIM_NEVER)
				return SIM_NEVER;
			t = until;
			continue;
		}
		can = until == SIM_NEVER ? bytes : rate * (double)(until - t) / DC_NS_PER_S;
		if (can >= bytes)
			return t + (uint64_t)(bytes / rate * DC_NS_PER_S) + 1;
		bytes -= can;
		t = until;
	}
	return t;
}

static void schedule(struct sim_device *d, uint64_t at)
{
	if (at >= d->next_poll)
		return;
	d->next_poll = at;
	sim_at(d->sim, at, SIM_POLL, d);
}

static void give_back(struct sim_device *d, struct dc_op *op)
{
	op->res = d->fails && op->kind != DC_OP_DROP ? -EIO : 0;
	op->next = NULL;
	*d->done_last = op;
	d->done_last = &op->next;
}

static void submit(struct dc_backend *be, struct dc_op *op)
{
	struct sim_device *d = (struct sim_device *)be;
	uint64_t start = dc_max_u64(d->sim->now, d->free_at), end = start;
	double bytes = 0;

	if (op->kind == DC_OP_DROP) {
		give_back(d, op);
		schedule(d, d->sim->now);
		return;
	}
	if (op->kind == DC_OP_WRITEBACK)
		bytes = (double)(container_of_dc(op, struct dc_turn, op)->pages << DC_PAGE_SHIFT);
	if (d->idle_since) {
		if (d->sim->now >= d->sim->from && d->sim->now < d->sim->to)
			d->lost_ns += d->sim->now - dc_max_u64(d->idle_since, d->sim->from);
		d->idle_since = 0;
	}
	if (start != SIM_NEVER) {
		start += d->op_ns;
		if (d->seek_ns && (op->fd != d->next_fd || op->offset != d->next_offset))
			start += d->seek_ns;
		end = finish_at(d, start, bytes);
	}
	d->next_fd = op->fd;
	d->next_offset = op->offset + op->len;
	if (end != SIM_NEVER && end > d->sim->from)
		d->busy_ns += end - dc_max_u64(dc_max_u64(d->sim->now, d->free_at), d->sim->from);
	d->free_at = end;
	d->written += (uint64_t)bytes;
	if (d->nr == d->cap) {
		uint32_t cap = d->cap ? 2 * d->cap : 64;
		uint64_t *ring = dc_realloc(NULL, cap * sizeof(*ring));

		for (uint32_t i = 0; i < d->nr; i++)
			ring[i] = d->finish[(d->head + i) % d->cap];
		free(d->finish);
		d->finish = ring;
		d->head = 0;
		d->cap = cap;
	}
	d->finish[(d->head + d->nr++) % d->cap] = end;
	op->next = NULL;
	*d->last = op;
	d->last = &op->next;
	if (d->nr == 1 && end != SIM_NEVER)
		schedule(d, end);
}

static struct dc_op *wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct sim_device *d = (struct sim_device *)be;
	struct dc_op *done;

	(void)timeout_ns;
	while (d->nr > 0 && (d->finish[d->head] <= d->sim->now || d->sim->ended)) {
		struct dc_op *op = d->first;

		d->first = op->next;
		if (!d->first)
			d->last = &d->first;
		d->head = (d->head + 1) % d->cap;
		d->nr--;
		give_back(d, op);
	}
	done = d->done;
	d->done = NULL;
	d->done_last = &d->done;
	return done;
}

static void wake(struct dc_backend *be)
{
	struct sim_device *d = (struct sim_device *)be;

	schedule(d, d->sim->now);
}

static int no_sync(struct dc_backend *be, int fd)
{
	(void)be;
	(void)fd;
	return 0;
}

static int no_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	(void)offset;
	(void)len;
	return no_sync(be, fd);
}

static void no_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	no_writeback(be, fd, offset, len);
}

static void no_free(struct dc_backend *be)
{
	free(((struct sim_device *)be)->finish);
}

static const struct dc_backend_ops ops = {
	.name = "sim",
	.submit = submit,
	.wait = wait,
	.wake = wake,
	.sync = no_sync,
	.writeback = no_writeback,
	.drop = no_drop,
	.error = no_sync,
	.free = no_free,
};

/* dc_device_get() calls it without saying for which one. */
static struct sim_device *being_made;

static struct dc_backend *make(int *err)
{
	*err = 0;
	return &being_made->be;
}

void sim_device_start(struct sim *s, struct sim_device *d, uint64_t id)
{
	int err;

	d->be.ops = &ops;
	d->sim = s;
	d->last = &d->first;
	d->done_last = &d->done;
	d->next_poll = SIM_NEVER;
	being_made = d;
	d->dev = dc_device_get(s->eng, id, make, &err);
	dc_assert(d->dev);
	schedule(d, s->now);
}

/* Has any of its exports something that ought to be written? */
static bool has_work(const struct sim_device *d)
{
	struct dc_export *exp;

	TAILQ_FOREACH(exp, &d->dev->exports, dev_link)
	{
		if (exp->heap_nr > 0 && (atomic_load(&exp->contended) != 0 ||
					 dc_dirty_pages(exp) > atomic_load(&exp->background)))
			return true;
	}
	return false;
}

void sim_device_poll(struct sim_device *d)
{
	uint64_t timeout;

	d->next_poll = SIM_NEVER;
	dc_device_poll(d->dev, 0);
	/* What it submitted may be done at once, as drops are. */
	if (d->done) {
		schedule(d, d->sim->now);
		return;
	}
	if (d->nr == 0 && !d->idle_since && has_work(d))
		d->idle_since = d->sim->now;
	timeout = dc_device_timeout(d->dev, d->sim->now);
	if (d->nr > 0 && d->finish[d->head] != SIM_NEVER)
		schedule(d, dc_max_u64(d->finish[d->head], d->sim->now));
	schedule(d, d->sim->now + dc_max_u64(timeout, 1000));
}

void sim_device_drain(struct sim_device *d)
{
	while (d->nr > 0 || d->done)
		dc_device_poll(d->dev, 0);
}
