/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Stable writes, and COMMITs of a part of a file: only the range that was asked for is made durable,
 * so that a stable write of 4 KiB does not wait for another client's stream in the same file, and no
 * thread waits for the device.
 *
 *     dc_stable_begin() ... the write, dc_write_done() ... dc_stable_sync() --> done(), later
 *                                                            |
 *                            the device's sync thread: submit, reap, judge
 *
 * One sync is under way in a file at a time. Those that arrive meanwhile share the next, as far as the
 * range that holds them all has little else in it to be written.
 *
 * When is a sync's success a success? A writeback error is one event of the file in the kernel, and each
 * open file description is told of it once: by whichever call on it asks first. So these syncs go through
 * a descriptor of their own (file->sync_fd), from which no turn of the flusher can take an error; being
 * one at a time, they do not take each other's either. And a sync fails if any error was recorded in the
 * file since before its write began.
 *
 * The descriptor is opened before the write, so that it cannot have missed an error that concerns it; for
 * a COMMIT, whose writes are older, what the other descriptor may have taken before is waited for, and the
 * other descriptor itself is asked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* A COMMIT syncs its range alone if at least this much else would have to be written with it. */
#define OUTSIDE_MIN_PAGES DC_WINDOW_PAGES
/* And in pieces of so much, so that the budget flows meanwhile. */
#define PIECE_PAGES ((8UL << 20) >> DC_PAGE_SHIFT)
/* Stable writes share a sync if so much else, at most, is dirty in the range that holds them. */
#define SHARED_MAX_PAGES 256
/* Windows with pages left by small stable writes: dropped when so many have come together. */
#define BEHIND_MAX 32

/* ---- the sync thread ---- */

static void submit_queued(struct dc_syncer *sy)
{
	struct dc_stable *s;

	pthread_mutex_lock(&sy->lock);
	while ((s = STAILQ_FIRST(&sy->queue))) {
		STAILQ_REMOVE_HEAD(&sy->queue, queue);
		pthread_mutex_unlock(&sy->lock);
		sy->in_flight++;
		sy->be->ops->submit(sy->be, &s->op);
		pthread_mutex_lock(&sy->lock);
	}
	pthread_mutex_unlock(&sy->lock);
}

static void *sync_thread(void *arg)
{
	struct dc_syncer *sy = arg;

	pthread_setname_np(pthread_self(), "dc_sync");
	while (!atomic_load(&sy->stop) || sy->in_flight > 0) {
		struct dc_op *op = sy->be->ops->wait(sy->be, -1), *next;

		/* Clear first, then look: who sets the bit from here on wakes the next wait. */
		atomic_store(&sy->woken, false);
		for (; op; op = next) {
			next = op->next;
			sy->in_flight--;
			op->done(op);
		}
		submit_queued(sy);
	}
	return NULL;
}

static struct dc_syncer *syncer_new(struct dc_device *dev)
{
	struct dc_syncer *sy = dc_zalloc(sizeof(*sy));
	int err = 0, rc;

	pthread_mutex_init(&sy->lock, NULL);
	STAILQ_INIT(&sy->queue);
	sy->be = dc_backend_make(dev, &err);
	rc = sy->be ? pthread_create(&sy->thread, NULL, sync_thread, sy) : -err;
	if (rc == 0)
		return sy;
	dc_log(dev->eng, DC_LOG_WARN,
	       "no thread for stable writes (%s): each syncs its whole file in a thread of the server",
	       strerror(rc));
	if (sy->be)
		sy->be->ops->free(sy->be);
	pthread_mutex_destroy(&sy->lock);
	free(sy);
	return NULL;
}

void dc_syncer_wanted(struct dc_device *dev)
{
	struct dc_syncer *sy;

	if (atomic_load(&dev->syncer) || !dev->eng->opt.threads)
		return;
	pthread_mutex_lock(&dev->lock);
	if (!atomic_load(&dev->syncer) && !dev->no_syncer) {
		sy = syncer_new(dev);
		dev->no_syncer = !sy;
		atomic_store(&dev->syncer, sy);
	}
	pthread_mutex_unlock(&dev->lock);
}

void dc_syncer_free(struct dc_syncer *sy)
{
	if (!sy)
		return;
	atomic_store(&sy->stop, true);
	sy->be->ops->wake(sy->be);
	pthread_join(sy->thread, NULL);
	dc_assert(STAILQ_EMPTY(&sy->queue));
	sy->be->ops->free(sy->be);
	pthread_mutex_destroy(&sy->lock);
	free(sy);
}

static void submit(struct dc_device *dev, struct dc_stable *s)
{
	struct dc_syncer *sy = atomic_load(&dev->syncer);

	dc_watch_begin(dev, &s->watch, s->file, "sync", s->offset, s->len);
	if (!sy) { /* no threads: whoever polls the device reaps it */
		dev->be->ops->submit(dev->be, &s->op);
		return;
	}
	pthread_mutex_lock(&sy->lock);
	STAILQ_INSERT_TAIL(&sy->queue, s, queue);
	pthread_mutex_unlock(&sy->lock);
	/* The sync thread itself looks before it waits. */
	if (!pthread_equal(pthread_self(), sy->thread) && !atomic_exchange(&sy->woken, true))
		sy->be->ops->wake(sy->be);
}

/* ---- the descriptor ---- */

/* file->lock held, file->fd pinned. */
static bool open_locked(struct dc_file *file)
{
	struct dc_device *dev = file->exp->dev;
	struct dc_backend *be = dev->be;
	int fd;

	if (file->sync_fd >= 0)
		return true;
	if (dev->eng->opt.threads && !atomic_load(&dev->syncer))
		return false;
	/* No idle descriptor is closed for it: that takes other files' locks. */
	if (dc_fd_pressed(file->exp->eng))
		return false;
	fd = be->ops->reopen(be, file->fd);
	if (fd < 0)
		return false;
	file->sync_fd = fd;
	atomic_fetch_add(&file->exp->eng->nr_open, 1);
	/* What was in flight on the other descriptor may have taken an error that this one will never
	 * see. Who asks about older writes waits for these. */
	file->sync_fd_turn = file->turn_id;
	file->sync_fd_sync = file->syncing ? file->sync_no : 0;
	return true;
}

bool dc_stable_begin(struct dc_file *file)
{
	bool ok;

	dc_syncer_wanted(file->exp->dev);
	pthread_mutex_lock(&file->lock);
	dc_assert(file->fd >= 0 && file->fd_users > 0);
	ok = open_locked(file);
	pthread_mutex_unlock(&file->lock);
	return ok;
}

/* ---- dropping behind ---- */

/* Pages [first, end) are clean now. Whole windows are dropped as the writer leaves them; what scattered
 * writes touched, when there are many. file->lock held, and dropped on the way. */
static void leave_behind_locked(struct dc_file *file, uint64_t first, uint64_t end)
{
	struct dc_runs *runs = &file->behind;
	uint64_t w = first / DC_WINDOW_PAGES, we = (end - 1) / DC_WINDOW_PAGES + 1;
	bool there = false;

	if (!atomic_load(&file->exp->drop_behind))
		return;
	for (uint32_t i = runs->nr; i-- > 0 && !there;)
		there = runs->run[i].first <= w && we <= runs->run[i].end;
	if (!there)
		dc_runs_add(runs, w, we);
	if (end % DC_WINDOW_PAGES == 0 || runs->nr >= BEHIND_MAX)
		dc_drop_later_locked(file, runs);
}

/* ---- a sync from submission to verdict ---- */

/* A COMMIT waits for its sync. */
struct waiting {
	struct dc_stable s;
	bool over;
};

static void wake_committer(struct dc_stable *s, int res)
{
	struct waiting *w = container_of_dc(s, struct waiting, s);
	struct dc_file *file = s->file;

	(void)res;
	pthread_mutex_lock(&file->lock);
	w->over = true;
	dc_file_wake_locked(file);
	pthread_mutex_unlock(&file->lock);
}

/* What its client is to be told. file->lock held. Returns references to put. */
static int judge_locked(struct dc_file *file, struct dc_stable *s, int res)
{
	/* A COMMIT asks for itself, when it has synced all its pieces. */
	int owed = s->done == wake_committer ? 0 : dc_told_locked(file, s->client, false), puts;

	s->res = res;
	if (s->res == 0 && atomic_load(&file->errors) != s->errors)
		s->res = file->last_error;
	if (s->res == 0)
		s->res = owed;
	dc_fd_unpin_locked(file);
	puts = 1 + dc_settle_locked(file);
	dc_file_rest_locked(file);
	return puts;
}

static void reaped(struct dc_op *op);

/* Pages that syncing [offset, end) would write or wait for; file->lock held. */
static uint64_t pending_locked(struct dc_file *file, uint64_t offset, uint64_t end)
{
	struct dc_turn *turn;
	uint64_t pages = 0;

	if (file->map.nr_pages > 0)
		pages = dc_map_count(&file->map, offset >> DC_PAGE_SHIFT,
				     (end - 1) >> DC_PAGE_SHIFT);
	LIST_FOREACH(turn, &file->turns, link)
	{
		if (turn->kind == DC_TURN_WRITEBACK && turn->op.offset < end &&
		    offset < turn->op.offset + turn->op.len)
			pages += turn->pages;
	}
	return pages;
}

/* The first in the queue leads a sync; those that it can take along ride. All that is claimed in its
 * range becomes its writeback. file->lock held. Returns the leader, for submit(), or NULL; adds to
 * *puts. */
static struct dc_stable *lead_locked(struct dc_file *file, int *puts)
{
	struct dc_stable *s = STAILQ_FIRST(&file->stables), *other, *next;
	uint64_t offset, end, own;

	dc_held(&file->lock);
	if (!s || file->leader)
		return NULL;
	STAILQ_REMOVE_HEAD(&file->stables, queue);
	STAILQ_INIT(&s->riders);
	offset = s->offset;
	end = s->offset + s->len;
	own = dc_write_pages(s->offset, s->len);
	for (other = STAILQ_FIRST(&file->stables); other; other = next) {
		uint64_t o = dc_min_u64(offset, other->offset);
		uint64_t e = dc_max_u64(end, other->offset + other->len);
		uint64_t both = own + dc_write_pages(other->offset, other->len);

		next = STAILQ_NEXT(other, queue);
		if (e - o > UINT32_MAX || pending_locked(file, o, e) > both + SHARED_MAX_PAGES)
			continue;
		STAILQ_REMOVE(&file->stables, other, dc_stable, queue);
		STAILQ_INSERT_TAIL(&s->riders, other, queue);
		offset = o;
		end = e;
		own = both;
	}
	file->leader = s;
	s->pages = 0;
	if (file->map.nr_pages > 0) {
		s->pages = dc_map_clear_range(&file->map, offset >> DC_PAGE_SHIFT,
					      (end - 1) >> DC_PAGE_SHIFT);
		dc_count_writeback(file->exp, s->pages);
		if (file->map.nr_pages == 0)
			*puts += dc_became_clean_locked(file);
	}
	memset(&s->op, 0, sizeof(s->op));
	s->op.kind = DC_OP_SYNC;
	s->op.fd = file->sync_fd;
	s->op.offset = offset;
	s->op.len = end - offset;
	s->op.done = reaped;
	dc_count(file->exp, DC_CTR_SYNCS, 1);
	return s;
}

/* The sync thread, or whoever polls the device. */
static void reaped(struct dc_op *op)
{
	struct dc_stable *s = container_of_dc(op, struct dc_stable, op), *next, *leader;
	STAILQ_HEAD(, dc_stable) final = STAILQ_HEAD_INITIALIZER(final);
	struct dc_file *file = s->file;
	struct dc_export *exp = file->exp;
	struct dc_device *dev = exp->dev;
	uint64_t pages = s->pages, first = op->offset >> DC_PAGE_SHIFT;
	uint64_t end = ((op->offset + op->len - 1) >> DC_PAGE_SHIFT) + 1;
	int puts = 0, told = 0, res = op->res;

	dc_watch_end(dev, &s->watch);
	if (dc_refused(res) || dc_ambiguous(res)) {
		/* As for a turn: the whole file then, here, slow but right. */
		told = dc_ambiguous(res) ? res : 0;
		res = dev->be->ops->sync(dev->be, op->fd);
		if (res == 0)
			res = told;
	}
	dc_file_hold(file);
	pthread_mutex_lock(&file->lock);
	dc_assert(file->leader == s);
	file->leader = NULL;
	if (res < 0)
		dc_error_locked(file, res);
	STAILQ_CONCAT(&final, &s->riders);
	STAILQ_INSERT_HEAD(&final, s, queue);
	STAILQ_FOREACH(s, &final, queue)
	puts += judge_locked(file, s, res);
	leader = lead_locked(file, &puts);
	dc_audit(dc_file_is_sound_locked(file));
	dc_file_wake_locked(file);
	/* Last: the lock is dropped on the way. */
	if (res == 0 && pages > 0 && file->fd >= 0)
		leave_behind_locked(file, first, end);
	pthread_mutex_unlock(&file->lock);
	dc_count_cleaned(exp, pages, 0);
	dc_count(exp, DC_CTR_CLEANED_COMMIT, pages << DC_PAGE_SHIFT);
	dc_release(exp, pages);
	if (leader)
		submit(dev, leader);
	for (s = STAILQ_FIRST(&final); s; s = next) {
		next = STAILQ_NEXT(s, queue);
		/* Where the export was ended over a stable write, on a device that did not answer in
		 * time, nobody is left to be told. */
		if (s->done == wake_committer || !atomic_load(&exp->ended))
			s->done(s, s->res);
	}
	dc_file_puts(file, puts + 1);
}

/* file->lock held. */
static void enqueue_locked(struct dc_file *file, struct dc_stable *s)
{
	dc_assert(file->sync_fd >= 0 && file->fd_users > 0 && s->len > 0);
	s->file = file;
	dc_file_hold(file);
	file->fd_users++;
	STAILQ_INSERT_TAIL(&file->stables, s, queue);
}

void dc_stable_sync(struct dc_file *file, struct dc_stable *s)
{
	struct dc_export *exp = file->exp;
	struct dc_stable *leader;
	int puts = 0;

	dc_assert(file->magic == DC_FILE_MAGIC);
	pthread_mutex_lock(&file->lock);
	if (!s->begun) {
		int res;

		/* No descriptor for it: the whole file, in this thread. */
		file->need_seq = file->write_seq;
		pthread_mutex_unlock(&file->lock);
		res = dc_commit_since(file, s->client, 0, 0, s->errors, false);
		dc_write_unpin(file);
		s->done(s, res);
		return;
	}
	enqueue_locked(file, s);
	leader = lead_locked(file, &puts);
	dc_fd_unpin_locked(file); /* the caller's; the sync has its own */
	pthread_mutex_unlock(&file->lock);
	dc_count(exp, DC_CTR_COMMITS, 1);
	if (leader)
		submit(exp->dev, leader);
	else
		dc_count(exp, DC_CTR_COMMITS_SHARED, 1);
	dc_file_puts(file, puts);
}

/* ---- COMMIT of a range ---- */

bool dc_range_pays_locked(struct dc_file *file, uint64_t offset, uint64_t len)
{
	uint64_t first = offset >> DC_PAGE_SHIFT, last = (offset + len - 1) >> DC_PAGE_SHIFT;
	uint64_t outside = file->map.nr_pages;
	struct dc_turn *turn;

	if (len == 0 || len > UINT32_MAX || offset + len < offset)
		return false;
	if (outside > 0)
		outside -= dc_map_count(&file->map, first, last);
	LIST_FOREACH(turn, &file->turns, link)
	{
		if (turn->kind == DC_TURN_WRITEBACK &&
		    (turn->op.offset >= offset + len || turn->op.offset + turn->op.len <= offset))
			outside += turn->pages;
	}
	return outside >= OUTSIDE_MIN_PAGES && open_locked(file);
}

int dc_commit_range_locked(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len,
			   uint64_t errors, int *puts)
{
	struct dc_backend *be = file->exp->dev->be;
	uint64_t end = offset + len;
	struct dc_stable *leader;
	int res = 0, told;

	while (offset < end && res == 0) {
		struct waiting w = { .s = { .offset = offset, .client = client, .errors = errors } };
		uint64_t first = offset >> DC_PAGE_SHIFT, upto = end;

		if (dc_map_count(&file->map, first, (end - 1) >> DC_PAGE_SHIFT) > PIECE_PAGES)
			upto = (dc_map_nth(&file->map, first, PIECE_PAGES) + 1) << DC_PAGE_SHIFT;
		w.s.len = dc_min_u64(upto, end) - offset;
		w.s.done = wake_committer;
		enqueue_locked(file, &w.s);
		leader = lead_locked(file, puts);
		if (leader) {
			pthread_mutex_unlock(&file->lock);
			submit(file->exp->dev, leader);
			pthread_mutex_lock(&file->lock);
		}
		while (!w.over)
			dc_file_wait_locked(file);
		res = w.s.res;
		offset += w.s.len;
	}
	/* Writes older than the descriptor: see open_locked(). */
	dc_reap_locked(file, file->sync_fd_turn);
	while (file->syncing && file->sync_no == file->sync_fd_sync)
		dc_file_wait_locked(file);
	/* And what this one has never been told of because somebody else was, a local process's fsync for
	 * one, before it was opened. */
	told = be->ops->error(be, file->fd);
	if (dc_refused(told)) {
		/* Nobody may ask like that here: the plain way, of the whole file. */
		pthread_mutex_unlock(&file->lock);
		told = be->ops->sync(be, file->fd);
		pthread_mutex_lock(&file->lock);
	}
	if (told < 0)
		dc_error_locked(file, told);
	if (res == 0 && atomic_load(&file->errors) != errors)
		res = file->last_error;
	return res;
}
