/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Drop-behind: removing the clean pages of windows that were written back (R8).
 *
 * POSIX_FADV_DONTNEED passes over a page that somebody holds at that moment, and just after
 * writeback, above all while an fdatasync walks the file, somebody often does: up to a whole turn's
 * pages stayed behind, for good. So after each drop the kernel is asked what is left (cachestat
 * consumes nothing), and what is left lingers a little and is dropped again, a few times.
 */
#include <stdlib.h>

#include "internal.h"

#define LINGER_NS (20 * DC_NS_PER_MS) /* doubled each time: 20 ms to 640 ms */
#define TRIES_MAX 6

static bool left_cached(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct dc_cachestat st;

	return be->ops->cachestat && be->ops->cachestat(be, fd, offset, len, &st) == 0 &&
	       st.cached > st.dirty + st.writeback;
}

/* All runs were tried. */
static void linger_or_end(struct dc_device *dev, struct dc_turn *turn)
{
	struct dc_runs tried = turn->runs;

	if (turn->again.nr == 0 || turn->tries >= TRIES_MAX ||
	    atomic_load(&turn->file->exp->draining)) {
		dc_turn_end(dev, turn);
		return;
	}
	turn->runs = turn->again;
	turn->again = tried;
	turn->again.nr = 0;
	turn->due = dc_now(dev->eng) + (LINGER_NS << turn->tries++);
	TAILQ_INSERT_TAIL(&dev->lingering, turn, linger);
}

void dc_drop_next(struct dc_device *dev, struct dc_turn *turn)
{
	struct dc_file *file = turn->file;
	uint64_t first, end;
	bool more;

	pthread_mutex_lock(&file->lock);
	more = dc_runs_next_locked(file, &turn->runs, &first, &end);
	pthread_mutex_unlock(&file->lock);
	if (!more) {
		linger_or_end(dev, turn);
		return;
	}
	turn->kind = DC_TURN_DROP;
	turn->op.kind = DC_OP_DROP;
	turn->op.offset = first << DC_WINDOW_SHIFT;
	turn->op.len = (end - first) << DC_WINDOW_SHIFT;
	if (turn->tries == 0)
		dc_count(file->exp, DC_CTR_DROPPED, turn->op.len);
	dev->be->ops->submit(dev->be, &turn->op);
}

void dc_drop_done(struct dc_device *dev, struct dc_turn *turn)
{
	if (left_cached(dev->be, turn->op.fd, turn->op.offset, turn->op.len))
		dc_runs_add(&turn->again, turn->op.offset >> DC_WINDOW_SHIFT,
			    (turn->op.offset + turn->op.len) >> DC_WINDOW_SHIFT);
	dc_drop_next(dev, turn);
}

void dc_drop_due(struct dc_device *dev, uint64_t now)
{
	struct dc_turn *turn, *next;

	pthread_mutex_lock(&dev->lock);
	while ((turn = TAILQ_FIRST(&dev->handed_over))) {
		TAILQ_REMOVE(&dev->handed_over, turn, linger);
		TAILQ_INSERT_TAIL(&dev->lingering, turn, linger);
		turn->file->exp->turns_in_flight++;
	}
	pthread_mutex_unlock(&dev->lock);
	for (turn = TAILQ_FIRST(&dev->lingering); turn; turn = next) {
		next = TAILQ_NEXT(turn, linger);
		if (turn->due > now && !atomic_load(&turn->file->exp->draining))
			continue;
		TAILQ_REMOVE(&dev->lingering, turn, linger);
		dc_drop_next(dev, turn);
	}
}

uint64_t dc_drop_timeout(const struct dc_device *dev, uint64_t timeout)
{
	return TAILQ_EMPTY(&dev->lingering) ? timeout : dc_min_u64(timeout, LINGER_NS);
}

/* The flusher drops them when they have lingered; file->lock held, and dropped on the way. */
static void hand_over_locked(struct dc_file *file, struct dc_runs *runs, unsigned int tries)
{
	struct dc_device *dev = file->exp->dev;
	struct dc_turn *turn = dc_zalloc(sizeof(*turn));

	turn->kind = DC_TURN_DROP;
	turn->file = file;
	turn->op.fd = file->fd;
	turn->runs = *runs;
	turn->tries = tries;
	turn->due = dc_now(dev->eng) + LINGER_NS;
	*runs = (struct dc_runs){ 0 };
	dc_idle_remove_locked(file); /* it may have come to rest just now */
	file->fd_users++;
	file->turn_pins++;
	dc_file_hold(file);
	pthread_mutex_unlock(&file->lock);
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->handed_over, turn, linger);
	pthread_mutex_unlock(&dev->lock);
	dc_device_wake(dev);
	pthread_mutex_lock(&file->lock);
}

void dc_drop_now_locked(struct dc_file *file, struct dc_runs *runs)
{
	struct dc_device *dev = file->exp->dev;
	struct dc_runs again = { 0 };
	uint64_t first, end;
	int fd = file->fd;

	while (dc_runs_next_locked(file, runs, &first, &end)) {
		uint64_t offset = first << DC_WINDOW_SHIFT;
		uint64_t len = (end - first) << DC_WINDOW_SHIFT;

		pthread_mutex_unlock(&file->lock);
		dev->be->ops->drop(dev->be, fd, offset, len);
		if (left_cached(dev->be, fd, offset, len))
			dc_runs_add(&again, first, end);
		dc_count(file->exp, DC_CTR_DROPPED, len);
		pthread_mutex_lock(&file->lock);
	}
	if (again.nr == 0 || !dev->threaded || atomic_load(&file->exp->draining)) {
		free(again.run);
		return;
	}
	hand_over_locked(file, &again, 1);
}

void dc_drop_later_locked(struct dc_file *file, struct dc_runs *runs)
{
	if (file->exp->dev->threaded && !atomic_load(&file->exp->draining))
		hand_over_locked(file, runs, 0);
	runs->nr = 0;
}
