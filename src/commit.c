/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * COMMIT: cheap when there is nothing to do, honest always.
 *
 * Numbers, not flags, say what is durable: write_seq grows with each write recorded; synced_seq is
 * write_seq as read before a successful fdatasync began. A COMMIT is covered once synced_seq has
 * reached the write_seq it found on arrival.
 *
 *   covered already ........ answer, no I/O
 *   a sync is running ...... wait for it; covered if it began late enough, else lead the next:
 *                            so any number that arrive meanwhile share one
 *   much is dirty elsewhere  sync the range that was asked for alone (stable.c)
 *   much is dirty .......... let the flusher write it first, in turns, so that the budget keeps
 *                            flowing for everybody else; then the sync has little left
 *
 * The one trap: a turn's wait reports, and by that consumes, a writeback error of the descriptor
 * that fdatasync uses too. So a sync only counts as successful once every turn that was in flight
 * when it returned has been reaped: if one of them carried the error, it is on record by then.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "internal.h"

/* Up to this much the committer writes itself: one hop less for small synchronous files. */
#define COMMIT_DIRECT_PAGES ((8UL << 20) >> DC_PAGE_SHIFT)

/* Has the flusher submit all that is dirty now. file->lock held, and dropped on the way. */
static void flush_first_locked(struct dc_file *file)
{
	struct dc_export *exp = file->exp;
	uint64_t want;

	pthread_mutex_lock(&exp->lock);
	if (!file->on_commit_list) {
		file->on_commit_list = true;
		file->commit_pass = 0;
		TAILQ_INSERT_TAIL(&exp->commits, file, commit_link);
		pthread_mutex_unlock(&exp->lock);
		dc_pass_begin_locked(file, dc_now(exp->eng));
		want = file->pass_no;
	} else {
		/* Somebody's pass is under way; it may be past what we wrote. */
		pthread_mutex_unlock(&exp->lock);
		want = file->pass_no + 1;
	}
	pthread_mutex_lock(&exp->lock);
	file->commit_pass = dc_max_u64(file->commit_pass, want);
	pthread_mutex_unlock(&exp->lock);
	pthread_mutex_unlock(&file->lock);
	dc_kick(exp);
	pthread_mutex_lock(&file->lock);
	while (file->passes_done < want && file->map.nr_pages > 0)
		dc_file_wait_locked(file);
}

void dc_reap_locked(struct dc_file *file, uint64_t id)
{
	struct dc_turn *turn;

again:
	LIST_FOREACH(turn, &file->turns, link)
	{
		if (turn->id <= id) {
			dc_file_wait_locked(file);
			goto again;
		}
	}
}

/* One fdatasync, with everything that is dirty accounted as its writeback. file->lock held, and
 * dropped on the way. Returns references to put and, in *pages, what to release. */
static int sync_locked(struct dc_file *file, int *res, uint64_t *pages)
{
	struct dc_export *exp = file->exp;
	struct dc_backend *be = exp->dev->be;
	uint64_t seq = file->write_seq;
	struct dc_runs runs = { 0 };
	struct dc_take take = { 0 };
	int puts = 0, fd = file->fd;
	struct dc_watch watch;

	dc_assert(fd >= 0 && file->fd_users > 0 && !file->syncing);
	file->syncing = true;
	file->sync_no++;
	if (dc_take_all_locked(file, &take, &runs)) {
		dc_count_writeback(exp, take.pages);
		puts += dc_became_clean_locked(file);
	}
	pthread_mutex_unlock(&file->lock);

	dc_watch_begin(exp->dev, &watch, file, "fdatasync", 0, take.pages << DC_PAGE_SHIFT);
	*res = be->ops->sync(be, fd);
	dc_watch_end(exp->dev, &watch);
	dc_count(exp, DC_CTR_SYNCS, 1);

	pthread_mutex_lock(&file->lock);
	/* At once: whoever is being answered meanwhile must know. */
	if (*res < 0)
		dc_error_locked(file, *res);
	dc_reap_locked(file, file->turn_id);
	file->syncing = false;
	if (*res == 0 && seq > file->synced_seq)
		file->synced_seq = seq;
	*pages = take.pages;
	dc_count_cleaned(exp, take.pages, 0);
	dc_count(exp, DC_CTR_CLEANED_COMMIT, take.pages << DC_PAGE_SHIFT);
	if (*res == 0 && atomic_load(&exp->drop_behind))
		dc_drop_now_locked(file, &runs);
	free(runs.run);
	dc_file_wake_locked(file);
	return puts;
}

bool dc_commit_is_free(struct dc_file *file, uint64_t client, int *err)
{
	bool is_free;
	int puts = 0;

	dc_assert(file->magic == DC_FILE_MAGIC);
	pthread_mutex_lock(&file->lock);
	is_free = file->synced_seq >= file->need_seq;
	if (is_free) {
		*err = dc_told_locked(file, client, true);
		puts = dc_settle_locked(file);
	}
	pthread_mutex_unlock(&file->lock);
	dc_file_puts(file, puts);
	if (is_free) {
		dc_count(file->exp, DC_CTR_COMMITS, 1);
		dc_count(file->exp, DC_CTR_COMMITS_FREE, 1);
	}
	return is_free;
}

int dc_commit_since(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len,
		    uint64_t errors, bool by_commit)
{
	struct dc_export *exp = file->exp;
	uint64_t target, pages = 0, release = 0;
	bool waited = false, blocks;
	int puts = 0, res = 0, owed;

	dc_assert(file->magic == DC_FILE_MAGIC);
	dc_count(exp, DC_CTR_COMMITS, 1);
	if (len > 0)
		dc_syncer_wanted(exp->dev);
	pthread_mutex_lock(&file->lock);
	target = file->need_seq;
	blocks = file->synced_seq < target;
	if (blocks)
		dc_executor_blocks();
	else
		dc_count(exp, DC_CTR_COMMITS_FREE, 1);
	if (blocks && dc_range_pays_locked(file, offset, len)) {
		res = dc_commit_range_locked(file, client, offset, len, errors, &puts);
		target = 0;
	} else if (blocks && file->map.nr_pages > COMMIT_DIRECT_PAGES && exp->dev->threaded)
		flush_first_locked(file);
	while (file->synced_seq < target && res == 0) {
		if (file->syncing) {
			waited = true;
			dc_file_wait_locked(file);
			continue;
		}
		puts += sync_locked(file, &res, &pages);
		release += pages;
		waited = false;
	}
	if (waited)
		dc_count(exp, DC_CTR_COMMITS_SHARED, 1);
	owed = dc_told_locked(file, client, by_commit);
	/* Recorded while this was under way: somebody else's COMMIT may have been told what concerns
	 * this one too, and the pages are clean by now. */
	if (res == 0 && atomic_load(&file->errors) != errors)
		res = file->last_error;
	puts += dc_settle_locked(file);
	pthread_mutex_unlock(&file->lock);
	if (blocks)
		dc_executor_goes_on();
	dc_release(exp, release);
	dc_file_puts(file, puts);
	return owed ? owed : res;
}

int dc_commit(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len)
{
	return dc_commit_since(file, client, offset, len, dc_file_errors(file), true);
}
