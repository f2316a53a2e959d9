/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The flusher: one per device. It starts writeback early, keeps a bounded amount under way, drops
 * the clean pages behind it, and lets parked writes in as the budget frees.
 *
 *      kick -------> clear the bit, THEN read the counters (the other order loses kicks)
 *                         |
 *      exports over their level take turns; each turn: 4 to 32 MiB of its oldest file
 *                         |
 *      writeback ... complete -> counters fall -> parked writes admitted -> pages dropped
 *
 * An export is `active` while there is something to do for it, and keeps its kick bit set for as
 * long: writers then skip the wake-up altogether. The bit is cleared when it leaves, and the level
 * read once more after that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define TICK_NS (250 * DC_NS_PER_MS) /* how exact ages are */
#define AWAKE_NS (2 * DC_NS_PER_S)   /* ticks go on so long after the last work */
#define IDLE_FD_NS (5 * DC_NS_PER_S) /* an unused descriptor is closed after this */
#define SYNCS_MAX 4		     /* quiet files being fdatasync'ed at once */
#define SAY_NS (60 * DC_NS_PER_S)
#define TURN_LEAST (1UL << 20)	/* bytes: what turn_max() may come down to */
#define VISIT_WORTH (1UL << 20) /* bytes */
#define LEAST_OVER 640		/* pages: lent ones do not count */
#define DRAIN_MIN (1UL << 20)	/* bytes of the smallest turn while draining */

void dc_device_wake(struct dc_device *dev)
{
	if (!atomic_exchange(&dev->woken, true))
		dev->be->ops->wake(dev->be);
}

void dc_kick(struct dc_export *exp)
{
	struct dc_device *dev = exp->dev;

	if (atomic_exchange(&exp->kicked, true)) {
		dc_count(exp, DC_CTR_KICKS_COALESCED, 1);
		return;
	}
	dc_count(exp, DC_CTR_KICKS, 1);
	pthread_mutex_lock(&dev->lock);
	TAILQ_INSERT_TAIL(&dev->kicked, exp, kick_link);
	pthread_mutex_unlock(&dev->lock);
	dc_device_wake(dev);
}

static void sync_quiet(struct dc_device *dev, struct dc_export *exp, uint64_t now);

/* ---- turns ---- */

static struct dc_turn *turn_new(struct dc_device *dev, struct dc_file *file)
{
	struct dc_turn *turn = LIST_FIRST(&dev->free_turns);

	if (turn)
		LIST_REMOVE(turn, link);
	else
		turn = dc_zalloc(sizeof(*turn));
	turn->file = file;
	turn->runs.nr = 0;
	turn->again.nr = 0;
	turn->tries = 0;
	turn->pages = 0;
	return turn;
}

static void turn_free(struct dc_device *dev, struct dc_turn *turn)
{
	LIST_INSERT_HEAD(&dev->free_turns, turn, link);
}

static enum dc_counter reason_counter(enum dc_reason reason)
{
	static const enum dc_counter ctr[] = {
		[DC_REASON_BACKGROUND] = DC_CTR_CLEANED_BACKGROUND,
		[DC_REASON_EXPIRE] = DC_CTR_CLEANED_EXPIRE,
		[DC_REASON_LIMIT] = DC_CTR_CLEANED_LIMIT,
		[DC_REASON_COMMIT] = DC_CTR_CLEANED_COMMIT,
		[DC_REASON_SHUTDOWN] = DC_CTR_CLEANED_SHUTDOWN,
	};

	return ctr[reason];
}

/* A turn that is under way cannot be called back, and ending the process waits for it: while
 * draining, submit only what will be done in time. But one small turn always: the estimate may be
 * one of small writes, and then nothing would ever seem to fit. Bytes; 0: nothing. */
static uint64_t drain_fits(struct dc_export *exp, uint64_t now)
{
	struct dc_device *dev = exp->dev;
	uint64_t until = atomic_load(&exp->drain_until), flight = dev->in_flight << DC_PAGE_SHIFT;
	double room;

	if (now >= until)
		return 0;
	if (flight == 0 && dev->bw.bytes_per_s == 0)
		return DRAIN_MIN;
	room = (double)(until - now) / DC_NS_PER_S * (double)dev->bw.bytes_per_s - (double)flight;
	if (room >= (double)dc_bw_chunk(&dev->bw))
		return dc_bw_chunk(&dev->bw);
	return flight == 0 ? DRAIN_MIN : 0;
}

/* Is there anything to write back for this export, and why? exp->lock held. */
static bool work_wanted(struct dc_export *exp, uint64_t now, enum dc_reason *reason)
{
	if (!TAILQ_EMPTY(&exp->commits)) {
		*reason = DC_REASON_COMMIT;
		return true;
	}
	if (exp->heap_nr == 0)
		return false;
	if (atomic_load(&exp->draining)) {
		*reason = DC_REASON_SHUTDOWN;
		return drain_fits(exp, now) > 0;
	}
	if (atomic_load(&exp->contended) != 0) {
		*reason = DC_REASON_LIMIT;
		return true;
	}
	if (dc_fd_pressed(exp->eng)) {
		*reason = DC_REASON_LIMIT;
		return true;
	}
	if (dc_dirty_pages(exp) > atomic_load(&exp->background)) {
		*reason = DC_REASON_BACKGROUND;
		return true;
	}
	*reason = DC_REASON_EXPIRE;
	return exp->heap[0]->dirtied_when + atomic_load(&exp->expire_ns) <= now;
}

/* The file whose turn it is, referenced; NULL if the export needs nothing. */
static struct dc_file *pick(struct dc_export *exp, uint64_t now, enum dc_reason *reason)
{
	struct dc_file *file = NULL;

	pthread_mutex_lock(&exp->lock);
	if (work_wanted(exp, now, reason)) {
		dc_rate_begin(&exp->done, now);
		file = *reason == DC_REASON_COMMIT ? TAILQ_FIRST(&exp->commits) : exp->heap[0];
		dc_file_hold(file); /* alive: the lists' own reference goes under exp->lock */
	}
	pthread_mutex_unlock(&exp->lock);
	return file;
}

/* Is part of the range under writeback by an earlier turn? What was dirtied again there would be
 * skipped. file->lock held. */
static bool overlaps_locked(struct dc_file *file, const struct dc_turn *turn)
{
	const struct dc_turn *other;

	LIST_FOREACH(other, &file->turns, link)
	{
		if (other->op.offset < turn->op.offset + turn->op.len &&
		    turn->op.offset < other->op.offset + other->op.len)
			return true;
	}
	return false;
}

/*
 * Is part of the range under writeback by the kernel's own flusher, or by an fdatasync? A page of it
 * that was dirtied again would be skipped, and its claim is gone already (R3). Asked after the claims
 * were taken: what comes under writeback later and is dirtied again then is claimed again as well.
 */
static bool under_writeback(struct dc_device *dev, const struct dc_turn *turn)
{
	struct dc_cachestat st;

	return !dev->be->ops->cachestat ||
	       dev->be->ops->cachestat(dev->be, turn->op.fd, turn->op.offset, turn->op.len, &st) <
		       0 ||
	       st.writeback > 0;
}

/* The most that one turn takes, in bytes: of a small budget a small part, or what is dirty would go up and down
 * by whole turns. Linux takes an eighth, of a smaller half of what the device does in a second. */
static uint64_t turn_max(const struct dc_device *dev, const struct dc_export *exp)
{
	uint64_t part = atomic_load(&exp->usable) / 8 << DC_PAGE_SHIFT;
	uint64_t weight = atomic_load(&exp->weight);

	part = dc_min_u64(dc_bw_chunk(&dev->bw), dc_max_u64(part, TURN_LEAST));
	/* What it is over its turn's worth it has to wait for, while others are served. */
	if (weight < DC_WEIGHT_NORMAL)
		part = dc_min_u64(part, dc_max_u64(VISIT_WORTH * 8 * weight / DC_WEIGHT_NORMAL,
						   TURN_LEAST / 4));
	return part;
}

/* Submits one turn, of *bytes. Returns false when the export needs none. */
static bool flush_one(struct dc_device *dev, struct dc_export *exp, uint64_t now, uint64_t *bytes)
{
	uint64_t cancelled = 0;
	enum dc_reason reason;
	struct dc_turn *turn;
	struct dc_take take;
	int puts = 1;
	struct dc_file *file = pick(exp, now, &reason);
	uint64_t max = turn_max(dev, exp);
	bool taken = false;

	*bytes = 0;
	if (!file)
		return false;
	if (reason == DC_REASON_SHUTDOWN)
		max = dc_max_u64(drain_fits(exp, now), DC_PAGE_SIZE);
	turn = turn_new(dev, file);
	pthread_mutex_lock(&file->lock);
	/* A rename over it, or a local rm, that nobody told us of: not worth writing. */
	if (file->map.nr_pages > 0 && dc_nameless_locked(file))
		puts += dc_unlinked_locked(file, &cancelled);
	taken = dc_take_locked(file, max >> DC_PAGE_SHIFT, now, &take, &turn->runs);
	if (taken) {
		dc_assert(file->fd >= 0);
		turn->kind = DC_TURN_WRITEBACK;
		turn->reason = reason;
		turn->pages = take.pages;
		turn->id = ++file->turn_id;
		turn->op.kind = DC_OP_WRITEBACK;
		turn->op.fd = file->fd;
		turn->op.offset = take.first << DC_PAGE_SHIFT;
		turn->op.len = (take.end - take.first) << DC_PAGE_SHIFT;
		turn->op.strict = overlaps_locked(file, turn);
		LIST_INSERT_HEAD(&file->turns, turn, link);
		file->fd_users++;
		file->turn_pins++;
		dc_count_writeback(exp, take.pages);
		puts--; /* the turn's own */
	}
	if (file->map.nr_pages == 0)
		puts += dc_became_clean_locked(file);
	pthread_mutex_unlock(&file->lock);
	dc_release(exp, cancelled);
	dc_file_puts(file, puts);
	if (!taken) {
		turn_free(dev, turn);
		return true;
	}
	if (!turn->op.strict)
		turn->op.strict = under_writeback(dev, turn);
	*bytes = take.pages << DC_PAGE_SHIFT;
	dc_bw_busy(&dev->bw, now);
	dev->in_flight += take.pages;
	exp->turns_in_flight++;
	dc_count(exp, DC_CTR_TURNS, 1);
	dc_watch_begin(dev, &turn->watch, file, "writeback", turn->op.offset, turn->op.len);
	dev->be->ops->submit(dev->be, &turn->op);
	return true;
}

/* The end of a turn: unpins, settles, frees. */
void dc_turn_end(struct dc_device *dev, struct dc_turn *turn)
{
	struct dc_file *file = turn->file;
	struct dc_export *exp = file->exp;
	int puts;

	pthread_mutex_lock(&file->lock);
	file->turn_pins--;
	dc_fd_unpin_locked(file);
	puts = 1 + dc_settle_locked(file);
	dc_file_rest_locked(file);
	pthread_mutex_unlock(&file->lock);
	exp->turns_in_flight--;
	dc_file_puts(file, puts);
	turn_free(dev, turn);
}

/* Claims what of a failed turn is dirty still, out of its own pages; file->lock held. */
static uint64_t reclaim_locked(struct dc_file *file, struct dc_turn *turn)
{
	struct dc_backend *be = file->exp->dev->be;
	bool was_clean = file->map.nr_pages == 0;
	uint64_t claimed = 0;

	if (file->unlinked || !be->ops->cachestat)
		return 0;
	for (uint32_t i = 0; i < turn->runs.nr; i++) {
		uint64_t w = turn->runs.run[i].first;

		for (; w < turn->runs.run[i].end && claimed < turn->pages; w++) {
			struct dc_inflation in = { .first = w, .nr = 1 };
			struct dc_cachestat st;

			if (be->ops->cachestat(be, file->fd, w << DC_WINDOW_SHIFT,
					       1UL << DC_WINDOW_SHIFT, &st) < 0)
				continue;
			in.dirty[0] = dc_min_u64(st.dirty, DC_WINDOW_PAGES);
			claimed += dc_inflation_claim_locked(file, &in, turn->pages - claimed);
		}
	}
	if (claimed > 0 && was_clean)
		dc_became_dirty_locked(file, dc_now(file->exp->eng));
	atomic_fetch_add(&dc_slot(file->exp)->dirty, (int64_t)claimed);
	return claimed;
}

/* Drops the next range that the turn cleaned; ends the turn when there is none. Ranges are looked at
 * one by one, because dropping starts writeback of what was dirtied since. */
static void writeback_done(struct dc_device *dev, struct dc_turn *turn, uint64_t now)
{
	struct dc_file *file = turn->file;
	struct dc_export *exp = file->exp;
	uint64_t pages = turn->pages, again = 0;
	int res = turn->op.res, told = 0;
	bool drop;

	if (dc_refused(res) || dc_ambiguous(res)) {
		int first = res;

		/* The pages are still dirty in the kernel, so the claim must not end (R3): do it
		 * the plain way, here, slow but right. */
		if (dev->said_refused == 0 || now - dev->said_refused > SAY_NS)
			dc_log(dev->eng, DC_LOG_WARN,
			       "%s: writeback is refused (%s); each is done by a plain system call "
			       "instead, which is slower. Said once a minute at most",
			       dev->be->ops->name, strerror(-res));
		dev->said_refused = now;
		res = dev->be->ops->writeback(dev->be, turn->op.fd, turn->op.offset, turn->op.len);
		if (dc_refused(res) || dc_ambiguous(res))
			res = dev->be->ops->sync(dev->be, turn->op.fd);
		/* Waiting may have consumed the device's error, and a repetition succeeds because the
		 * pages are clean by then. */
		if (res == 0 && dc_ambiguous(first))
			told = first;
	}
	pthread_mutex_lock(&file->lock);
	LIST_REMOVE(turn, link);
	if (res < 0 || told < 0)
		dc_error_locked(file, res < 0 ? res : told);
	/* The kernel lacked something and has the pages still: their claims begin again (R3). Not so when
	 * a device failed: what a file system keeps dirty then will never be clean, and the budget is
	 * for those that can go on. */
	if (dc_ambiguous(res))
		again = reclaim_locked(file, turn);
	drop = res == 0 && atomic_load(&exp->drop_behind);
	dc_file_wake_locked(file);
	pthread_mutex_unlock(&file->lock);

	dev->in_flight -= pages;
	dc_bw_completed(&dev->bw, now, pages << DC_PAGE_SHIFT, dev->in_flight != 0);
	dc_count(exp, reason_counter(turn->reason), (pages - again) << DC_PAGE_SHIFT);
	dc_count_cleaned(exp, pages, again);
	dc_release(exp, pages - again);
	if (drop)
		dc_drop_next(dev, turn);
	else
		dc_turn_end(dev, turn);
}

/* A quiet file was fdatasync'ed, so that its COMMIT will be free. */
static void sync_done(struct dc_device *dev, struct dc_turn *turn, uint64_t now)
{
	struct dc_file *file = turn->file;
	struct dc_export *exp = file->exp;

	pthread_mutex_lock(&file->lock);
	LIST_REMOVE(turn, link);
	if (turn->op.res < 0 && !dc_refused(turn->op.res))
		dc_error_locked(file, turn->op.res);
	else if (turn->op.res == 0 && file->turn_id == turn->id && !file->syncing &&
		 turn->sync_seq > file->synced_seq)
		/* Nothing began meanwhile that might have consumed this sync's error: no turn, and
		 * no COMMIT's sync, which would still be waiting for us. */
		file->synced_seq = turn->sync_seq;
	dc_file_wake_locked(file);
	pthread_mutex_unlock(&file->lock);
	dev->syncs_in_flight--;
	dc_turn_end(dev, turn);
	sync_quiet(dev, exp, now);
}

static void complete(struct dc_device *dev, struct dc_turn *turn, uint64_t now)
{
	switch (turn->kind) {
	case DC_TURN_WRITEBACK:
		dc_watch_end(dev, &turn->watch);
		writeback_done(dev, turn, now);
		break;
	case DC_TURN_DROP:
		dc_drop_done(dev, turn);
		break;
	case DC_TURN_SYNC:
		dc_watch_end(dev, &turn->watch);
		sync_done(dev, turn, now);
		break;
	}
}

/* ---- the device ---- */

static void activate(struct dc_device *dev, struct dc_export *exp)
{
	if (exp->active)
		return;
	exp->active = true;
	TAILQ_INSERT_TAIL(&dev->active, exp, active_link);
}

/* Nothing to do for the export: clear its bit, then look once more. */
static void deactivate(struct dc_device *dev, struct dc_export *exp, uint64_t now)
{
	enum dc_reason reason;
	bool more;

	TAILQ_REMOVE(&dev->active, exp, active_link);
	exp->active = false;
	exp->turn_credit = 0;
	if (!atomic_exchange(&exp->kicked, false))
		return;
	pthread_mutex_lock(&exp->lock);
	if (atomic_load(&exp->writeback) == 0)
		dc_rate_end(&exp->done, now);
	more = work_wanted(exp, now, &reason);
	pthread_mutex_unlock(&exp->lock);
	if (more && !atomic_exchange(&exp->kicked, true))
		activate(dev, exp);
}

static void take_kicked(struct dc_device *dev)
{
	struct dc_export *exp;

	pthread_mutex_lock(&dev->lock);
	while ((exp = TAILQ_FIRST(&dev->kicked))) {
		TAILQ_REMOVE(&dev->kicked, exp, kick_link);
		activate(dev, exp);
	}
	pthread_mutex_unlock(&dev->lock);
}

/* Submits fdatasync for files that have been quiet for the expiry time. */
static void sync_quiet(struct dc_device *dev, struct dc_export *exp, uint64_t now)
{
	uint64_t age = dc_fd_pressed(dev->eng) ? 0 : atomic_load(&exp->expire_ns);

	while (dev->syncs_in_flight < SYNCS_MAX) {
		struct dc_turn *turn;
		struct dc_file *file;
		bool go;

		pthread_mutex_lock(&exp->lock);
		file = TAILQ_FIRST(&exp->quiet);
		if (file && file->quiet_since + age <= now) {
			TAILQ_REMOVE(&exp->quiet, file, quiet_link);
			file->on_quiet_list = false;
			dc_file_hold(file);
		} else {
			file = NULL;
		}
		pthread_mutex_unlock(&exp->lock);
		if (!file)
			return;
		turn = turn_new(dev, file);
		pthread_mutex_lock(&file->lock);
		go = file->fd >= 0 && file->map.nr_pages == 0 && LIST_EMPTY(&file->turns) &&
		     !file->syncing;
		if (go) {
			file->fd_users++;
			file->turn_pins++;
			/* A COMMIT must wait for it as for any turn: it may eat an error. */
			LIST_INSERT_HEAD(&file->turns, turn, link);
			turn->kind = DC_TURN_SYNC;
			turn->id = ++file->turn_id;
			turn->sync_seq = file->write_seq;
			turn->op.kind = DC_OP_SYNC;
			turn->op.fd = file->fd;
			turn->op.offset = 0;
			turn->op.len = 0;
		}
		pthread_mutex_unlock(&file->lock);
		if (!go) {
			dc_file_put(file);
			turn_free(dev, turn);
			continue;
		}
		dev->syncs_in_flight++;
		exp->turns_in_flight++;
		dc_count(exp, DC_CTR_SYNCS, 1);
		dc_watch_begin(dev, &turn->watch, file, "fdatasync", 0, 0);
		dev->be->ops->submit(dev->be, &turn->op);
	}
}

/* Ages: what expired, what went quiet, which descriptors are unused. Returns true while there is
 * anything to watch. */
static bool tick(struct dc_device *dev, uint64_t now)
{
	bool watch = false;
	struct dc_export *exp;

	pthread_mutex_lock(&dev->lock);
	TAILQ_FOREACH(exp, &dev->exports, dev_link)
	{
		enum dc_reason reason;
		bool work;

		pthread_mutex_lock(&exp->lock);
		work = work_wanted(exp, now, &reason);
		watch |= exp->heap_nr > 0 || !TAILQ_EMPTY(&exp->quiet);
		pthread_mutex_unlock(&exp->lock);
		if (work && !atomic_exchange(&exp->kicked, true))
			activate(dev, exp);
		sync_quiet(dev, exp, now);
		dc_errors_expire(exp, now);
		if (atomic_load(&exp->audit))
			dc_audit_export(exp);
	}
	pthread_mutex_unlock(&dev->lock);
	watch |= dc_watch_look(dev, now);
	watch |= dc_idle_trim(dev->eng, now > IDLE_FD_NS ? now - IDLE_FD_NS : 0,
			      atomic_load(&dev->eng->max_open));
	dc_fd_recover(dev->eng, now);
	return watch;
}

static void detach_exports(struct dc_device *dev)
{
	struct dc_export *exp, *next;

	pthread_mutex_lock(&dev->lock);
	for (exp = dev->nr_detach ? TAILQ_FIRST(&dev->exports) : NULL; exp; exp = next) {
		next = TAILQ_NEXT(exp, dev_link);
		if (!exp->detach || exp->turns_in_flight != 0 || atomic_load(&exp->awaiting))
			continue;
		/* The bit stays set, so that no later kick puts it on our lists again. */
		if (exp->active)
			TAILQ_REMOVE(&dev->active, exp, active_link);
		else if (atomic_exchange(&exp->kicked, true))
			continue; /* on its way to dev->kicked */
		exp->active = false;
		TAILQ_REMOVE(&dev->exports, exp, dev_link);
		dev->nr_detach--;
		exp->detached = true;
	}
	pthread_mutex_unlock(&dev->lock);
}

/* An export that has more than its part of the server's budget goes first: others wait for those pages, and its
 * own writers for its part of the device. */
static int64_t visit_worth(const struct dc_export *exp)
{
	uint64_t usable = atomic_load(&exp->usable), weight = atomic_load(&exp->weight);
	uint64_t used = atomic_load(&exp->used) - atomic_load(&exp->withheld);

	if (used > dc_max_u64(usable, LEAST_OVER))
		weight = dc_max_u64(weight, DC_WEIGHT_MOST);
	return (int64_t)(VISIT_WORTH * weight / DC_WEIGHT_NORMAL);
}

/*
 * Exports take turns by deficit round robin (Shreedhar and Varghese, 1995): each visit is worth
 * VISIT_WORTH times the export's Weight, whatever the turns' sizes. A turn may cost more than there is: then
 * some visits pass.
 */
static void submit_turns(struct dc_device *dev, uint64_t now)
{
	unsigned int passed_over = 0;
	struct dc_export *exp;
	uint64_t bytes;

	while ((exp = TAILQ_FIRST(&dev->active))) {
		uint64_t window = dc_bw_window(&dev->bw, atomic_load(&exp->window_ms));

		if (dev->in_flight << DC_PAGE_SHIFT >= window)
			break;
		/* Half of a budget under writeback is enough: the other half is for writers. */
		if (atomic_load(&exp->writeback) * 2 > atomic_load(&exp->usable) &&
		    dev->in_flight > 0) {
			if (TAILQ_NEXT(exp, active_link) == NULL)
				break;
			TAILQ_REMOVE(&dev->active, exp, active_link);
			TAILQ_INSERT_TAIL(&dev->active, exp, active_link);
			if (++passed_over > 64)
				break;
			continue;
		}
		if (exp->turn_credit <= 0)
			exp->turn_credit += visit_worth(exp);
		if (exp->turn_credit > 0) {
			if (!flush_one(dev, exp, now, &bytes)) {
				deactivate(dev, exp, now);
				continue;
			}
			exp->turn_credit -= (int64_t)bytes;
			if (exp->turn_credit > 0)
				continue;
		}
		TAILQ_REMOVE(&dev->active, exp, active_link);
		TAILQ_INSERT_TAIL(&dev->active, exp, active_link);
	}
}

void dc_device_poll(struct dc_device *dev, int64_t timeout_ns)
{
	struct dc_op *op = dev->be->ops->wait(dev->be, timeout_ns);
	uint64_t now;

	/* Clear first, then read: who sets the bit from here on wakes the next wait. */
	atomic_store(&dev->woken, false);
	now = dc_now(dev->eng);
	if (op)
		dev->last_work = now;
	while (op) {
		struct dc_op *next = op->next;

		if (op->done)
			op->done(op);
		else
			complete(dev, container_of_dc(op, struct dc_turn, op), now);
		op = next;
	}
	take_kicked(dev);
	dc_pool_balance(dev->eng, now);
	dc_pace_due(dev, now);
	if (now >= dev->next_tick) {
		if (tick(dev, now))
			dev->last_work = now;
		dev->next_tick = now + TICK_NS;
	}
	dc_drop_due(dev, now);
	submit_turns(dev, now);
	detach_exports(dev);
	atomic_store_explicit(&dev->bandwidth_now, dev->bw.bytes_per_s, memory_order_relaxed);
	atomic_store_explicit(&dev->in_flight_now, dev->in_flight, memory_order_relaxed);
}

uint64_t dc_device_timeout(const struct dc_device *dev, uint64_t now)
{
	return dc_pace_timeout(dev, now, dc_drop_timeout(dev, TICK_NS));
}

void *dc_flusher_thread(void *arg)
{
	struct dc_device *dev = arg;
	bool deep = false;

	pthread_setname_np(pthread_self(), "dc_flusher");
	while (!atomic_load(&dev->stop)) {
		dc_device_poll(dev, deep ? -1 : (int64_t)dc_device_timeout(dev, dc_now(dev->eng)));
		atomic_store(&dev->deep_sleep, false);
		deep = dev->in_flight == 0 && dev->syncs_in_flight == 0 &&
		       TAILQ_EMPTY(&dev->active) && TAILQ_EMPTY(&dev->lingering) &&
		       TAILQ_EMPTY(&dev->awaited) && dc_now(dev->eng) - dev->last_work > AWAKE_NS;
		if (deep) {
			/* Announced before the last look, so that a file that becomes dirty now
			 * either is seen by this tick or wakes the wait. */
			atomic_store(&dev->deep_sleep, true);
			if (tick(dev, dc_now(dev->eng)) || !TAILQ_EMPTY(&dev->active)) {
				dev->last_work = dc_now(dev->eng);
				atomic_store(&dev->deep_sleep, false);
				deep = false;
			}
		}
	}
	return NULL;
}
