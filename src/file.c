/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Files: the descriptor each has of its own, the recording of writes, the shrinking of claims. The
 * table of files is in file_table.c, who must be told of an error in file_errors.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

void dc_idle_remove_locked(struct dc_file *file)
{
	struct dc_engine *eng = file->exp->eng;

	if (!file->idle)
		return;
	pthread_mutex_lock(&eng->idle_lock);
	TAILQ_REMOVE(&eng->idle, file, idle_link);
	eng->nr_idle--;
	pthread_mutex_unlock(&eng->idle_lock);
	file->idle = false;
}

/* ---- descriptors ---- */

void dc_file_wait_locked(struct dc_file *file)
{
	file->waiters++;
	pthread_cond_wait(&file->cond, &file->lock);
	file->waiters--;
}

void dc_file_wake_locked(struct dc_file *file)
{
	if (file->waiters)
		pthread_cond_broadcast(&file->cond);
}

bool dc_write_begin(struct dc_file *file)
{
	bool ok;

	dc_assert(file->magic == DC_FILE_MAGIC);
	pthread_mutex_lock(&file->lock);
	ok = file->fd >= 0;
	if (ok) {
		file->fd_users++;
		dc_idle_remove_locked(file);
	}
	pthread_mutex_unlock(&file->lock);
	return ok;
}

void dc_file_set_fd(struct dc_file *file, int fd)
{
	dc_assert(fd >= 0);
	if (atomic_load(&file->exp->audit))
		dc_audit_begin(file, fd);
	pthread_mutex_lock(&file->lock);
	if (file->fd < 0) {
		file->fd = fd;
		atomic_store(&file->eof, dc_file_size(file));
		atomic_fetch_add(&file->exp->eng->nr_open, 1);
		fd = -1;
		dc_file_rest_locked(file);
	}
	pthread_mutex_unlock(&file->lock);
	if (fd >= 0)
		close(fd);
}

void dc_fd_unpin_locked(struct dc_file *file)
{
	dc_assert(file->fd_users > 0);
	file->fd_users--;
	if (file->fd_users == 0 && file->unlinked && file->map.nr_pages == 0) {
		/* Keeping it would keep the deleted file's space. */
		dc_fd_close(file);
	}
}

void dc_write_unpin(struct dc_file *file)
{
	pthread_mutex_lock(&file->lock);
	dc_fd_unpin_locked(file);
	dc_file_rest_locked(file);
	pthread_mutex_unlock(&file->lock);
}

void dc_file_rest_locked(struct dc_file *file)
{
	struct dc_export *exp = file->exp;
	struct dc_engine *eng = exp->eng;

	if (file->map.nr_pages != 0 || !LIST_EMPTY(&file->turns) || file->syncing || file->fd < 0 ||
	    file->fd_users != 0)
		return;
	if (file->holds_sync_ref) {
		pthread_mutex_lock(&exp->lock);
		if (!file->on_quiet_list) {
			file->on_quiet_list = true;
			file->quiet_since = dc_now(eng);
			TAILQ_INSERT_TAIL(&exp->quiet, file, quiet_link);
		}
		pthread_mutex_unlock(&exp->lock);
	} else if (!file->idle) {
		file->idle = true;
		file->idle_since = dc_now(eng);
		pthread_mutex_lock(&eng->idle_lock);
		TAILQ_INSERT_TAIL(&eng->idle, file, idle_link);
		eng->nr_idle++;
		pthread_mutex_unlock(&eng->idle_lock);
	}
	/* The flusher may be asleep without a timeout; from now on it has an age to watch. */
	if (atomic_load(&exp->dev->deep_sleep))
		dc_device_wake(exp->dev);
}

void dc_fd_close(struct dc_file *file)
{
	struct dc_backend *be = file->exp->dev->be;

	dc_assert(file->fd_users == 0);
	for (uint32_t i = 0; i < file->behind.nr && !file->unlinked; i++) {
		uint64_t first = file->behind.run[i].first, end = file->behind.run[i].end;

		be->ops->drop(be, file->fd, first << DC_WINDOW_SHIFT,
			      (end - first) << DC_WINDOW_SHIFT);
	}
	file->behind.nr = 0;
	if (file->sync_fd >= 0) {
		close(file->sync_fd);
		file->sync_fd = -1;
		atomic_fetch_sub(&file->exp->eng->nr_open, 1);
	}
	close(file->fd);
	file->fd = -1;
	atomic_fetch_sub(&file->exp->eng->nr_open, 1);
}

bool dc_fd_room(struct dc_export *exp)
{
	struct dc_engine *eng = exp->eng;

	/* Idle ones first. Then those of dirty and of quiet files, which the flusher cleans and syncs while the
	 * cap is reached. */
	if (dc_fd_pressed(eng))
		dc_idle_trim(eng, 0, atomic_load(&eng->max_open) - 1);
	if (!dc_fd_pressed(eng))
		return true;
	dc_kick(exp);
	return false;
}

bool dc_fd_pressed(const struct dc_engine *eng)
{
	return atomic_load(&eng->nr_open) >= atomic_load(&eng->max_open);
}

#define SHED_MIN 8U
#define RECOVER_NS (10 * DC_NS_PER_S)

void dc_fd_shed(struct dc_engine *eng)
{
	uint32_t open = atomic_load(&eng->nr_open), max = atomic_load(&eng->max_open);
	uint32_t less = open / 2 < max / 2 ? open / 2 : max / 2;
	uint64_t now = dc_now(eng);
	struct dc_device *dev;

	atomic_store(&eng->shed_at, now);
	if (less < SHED_MIN)
		less = SHED_MIN < max ? SHED_MIN : max;
	if (less < max && atomic_compare_exchange_strong(&eng->max_open, &max, less))
		dc_log(eng, DC_LOG_WARN,
		       "the server has no file descriptor left: of ours, %u, half are given back. Give the "
		       "service a higher LimitNOFILE, or lower Max_Open_Files",
		       open);
	dc_idle_trim(eng, 0, less);
	/* What is dirty or unsynced is cleaned for its descriptor. */
	pthread_mutex_lock(&eng->lock);
	dev = eng->devices;
	pthread_mutex_unlock(&eng->lock);
	for (; dev; dev = dev->next)
		dc_device_wake(dev);
}

void dc_fd_recover(struct dc_engine *eng, uint64_t now)
{
	uint32_t max = atomic_load(&eng->max_open), more = max + max / 8 + 1;

	if (max >= eng->opt.max_open_files || atomic_load(&eng->shed_at) + RECOVER_NS > now)
		return;
	more = more < eng->opt.max_open_files ? more : eng->opt.max_open_files;
	atomic_compare_exchange_strong(&eng->max_open, &max, more);
}

bool dc_idle_trim(struct dc_engine *eng, uint64_t older_than, uint32_t keep)
{
	struct dc_file *file;
	bool left;

	for (;;) {
		pthread_mutex_lock(&eng->idle_lock);
		file = TAILQ_FIRST(&eng->idle);
		left = file != NULL;
		if (file && file->idle_since > older_than && atomic_load(&eng->nr_open) <= keep)
			file = NULL;
		/* On the list, so it has not been freed: file_free() takes it off first. But its
		 * last reference may be gone already; then file_free() closes the descriptor. */
		if (file) {
			uint32_t refs = atomic_load(&file->refs);

			while (refs > 0 &&
			       !atomic_compare_exchange_weak(&file->refs, &refs, refs + 1))
				;
			if (refs == 0)
				file = NULL;
		}
		pthread_mutex_unlock(&eng->idle_lock);
		if (!file)
			return left;
		pthread_mutex_lock(&file->lock);
		if (file->idle) {
			dc_idle_remove_locked(file);
			dc_assert(file->fd >= 0 && file->fd_users == 0);
			dc_fd_close(file);
		}
		pthread_mutex_unlock(&file->lock);
		dc_file_put(file);
	}
}

/* ---- recording ---- */

struct dc_writer *dc_writer_new_locked(struct dc_file *file)
{
	if (file->nr_writers == file->cap_writers) {
		file->cap_writers = file->cap_writers ? 2 * file->cap_writers : 1;
		file->writers =
			dc_realloc(file->writers, file->cap_writers * sizeof(*file->writers));
	}
	memset(&file->writers[file->nr_writers], 0, sizeof(*file->writers));
	return &file->writers[file->nr_writers++];
}

static void note_writer(struct dc_file *file, uint64_t client)
{
	struct dc_writer *w = file->writers;
	uint32_t i = file->last_writer, spare = UINT32_MAX;

	if (i >= file->nr_writers || w[i].client != client) {
		for (i = 0; i < file->nr_writers; i++) {
			if (w[i].client == client)
				break;
			/* While an error is owed, who was told stays known, within reason. */
			if ((!file->holds_error_ref || file->nr_writers >= 256) && w[i].err == 0 &&
			    w[i].seq <= file->synced_seq)
				spare = i;
		}
		if (i == file->nr_writers && spare != UINT32_MAX)
			i = spare;
		if (i == file->nr_writers) {
			dc_writer_new_locked(file);
			w = file->writers;
		}
		if (w[i].client != client)
			w[i] = (struct dc_writer){ .client = client };
		file->last_writer = i;
	}
	w[i].seq = file->write_seq;
}

void dc_became_dirty_locked(struct dc_file *file, uint64_t now)
{
	struct dc_export *exp = file->exp;
	bool wake;

	dc_assert(file->fd >= 0 && file->heap_index == DC_NOT_IN_HEAP);
	if (!file->holds_dirty_ref) {
		file->holds_dirty_ref = true;
		dc_file_hold(file);
	}
	dc_idle_remove_locked(file);
	pthread_mutex_lock(&exp->lock);
	if (file->on_quiet_list) {
		TAILQ_REMOVE(&exp->quiet, file, quiet_link);
		file->on_quiet_list = false;
	}
	wake = exp->heap_nr == 0;
	file->dirtied_when = now;
	dc_heap_insert(exp, file);
	pthread_mutex_unlock(&exp->lock);
	dc_pass_begin_locked(file, now);
	/* The flusher may be asleep without a timeout; from now on it has an age to watch. */
	if (wake && atomic_load(&exp->dev->deep_sleep))
		dc_device_wake(exp->dev);
}

int dc_became_clean_locked(struct dc_file *file)
{
	struct dc_export *exp = file->exp;

	dc_assert(file->map.nr_pages == 0);
	/* Also the pass that a COMMIT may be waiting for beyond this one: see flush_first_locked(). */
	file->passes_done = ++file->pass_no;
	pthread_mutex_lock(&exp->lock);
	if (file->heap_index != DC_NOT_IN_HEAP)
		dc_heap_remove(exp, file);
	if (file->on_commit_list) {
		TAILQ_REMOVE(&exp->commits, file, commit_link);
		file->on_commit_list = false;
	}
	pthread_mutex_unlock(&exp->lock);
	dc_file_wake_locked(file);
	if (!file->holds_dirty_ref)
		return 0;
	file->holds_dirty_ref = false;
	return 1;
}

static bool over_background(struct dc_export *exp)
{
	uint64_t bg = atomic_load_explicit(&exp->background, memory_order_relaxed);
	uint64_t used = atomic_load_explicit(&exp->used, memory_order_relaxed);
	uint64_t wb = atomic_load_explicit(&exp->writeback, memory_order_relaxed);

	/* The cheap upper bound first; the exact sum only near the level. */
	return used > bg + wb && dc_dirty_pages(exp) > bg;
}

uint64_t dc_file_errors(struct dc_file *file)
{
	return atomic_load(&file->errors);
}

void dc_write_done(struct dc_file *file, uint64_t offset, uint64_t len, uint64_t reserved,
		   uint64_t client, uint64_t errors, bool stable)
{
	struct dc_export *exp = file->exp;
	struct dc_inflation in = { 0 };
	uint64_t added = 0, inflated = 0, eof = atomic_load(&file->eof);

	/* A write beyond the end zeroes the rest of the page that the file ended in. */
	if (len > 0 && offset > eof)
		dc_file_edge(file, eof);

	if (len > 0 && reserved > dc_write_pages(offset, len))
		dc_inflation_ask(file, offset, len, &in);
	pthread_mutex_lock(&file->lock);
	if (len > 0) {
		uint64_t first = offset >> DC_PAGE_SHIFT;
		uint64_t last = (offset + len - 1) >> DC_PAGE_SHIFT;
		bool was_clean = file->map.nr_pages == 0;

		added = dc_map_set(&file->map, first, last);
		dc_assert(added <= reserved);
		inflated = dc_inflation_claim_locked(file, &in, reserved - added);
		added += inflated;
		if (offset + len > atomic_load(&file->eof))
			atomic_store(&file->eof, offset + len);
		file->write_seq++;
		if (!stable) {
			file->need_seq = file->write_seq;
			note_writer(file, client);
			if (atomic_load(&file->errors) != errors)
				dc_owe_locked(file, &file->writers[file->last_writer],
					      file->last_error);
		}
		if (!stable && !file->holds_sync_ref) {
			file->holds_sync_ref = true;
			dc_file_hold(file);
			atomic_fetch_add(&exp->nr_unsynced, 1);
		}
		if (was_clean)
			dc_became_dirty_locked(file, dc_now(exp->eng));
		/* Under the lock: the flusher must not subtract what is not added yet. */
		atomic_fetch_add(&dc_slot(exp)->dirty, (int64_t)added);
	}
	dc_audit(dc_file_is_sound_locked(file));
	if (!stable)
		dc_fd_unpin_locked(file);
	if (len == 0)
		dc_file_rest_locked(file);
	pthread_mutex_unlock(&file->lock);
	dc_unreserve(exp, reserved - added);
	if (len == 0)
		return;
	dc_count(exp, DC_CTR_WRITES, 1);
	dc_count(exp, DC_CTR_WRITTEN_CLIENT, len);
	dc_count(exp, DC_CTR_DIRTIED, added << DC_PAGE_SHIFT);
	if (inflated)
		dc_count(exp, DC_CTR_INFLATED, inflated << DC_PAGE_SHIFT);
	/* Not only over the level: with writes parked, what was admitted before them and becomes dirty
	 * only now stands in their way. */
	if (!atomic_load(&exp->kicked) &&
	    (atomic_load(&exp->contended) != 0 || over_background(exp)))
		dc_kick(exp);
}

/* ---- claims that end without I/O ---- */

/* Takes pages [first, last] off the map; the caller releases what is returned. */
static uint64_t cancel_locked(struct dc_file *file, uint64_t first, uint64_t last, int *puts)
{
	uint64_t gone = 0;

	if (file->map.nr_pages == 0)
		return 0;
	gone = dc_map_clear_range(&file->map, first, last);
	if (gone == 0)
		return 0;
	atomic_fetch_sub(&dc_slot(file->exp)->dirty, (int64_t)gone);
	dc_count(file->exp, DC_CTR_CANCELLED, gone << DC_PAGE_SHIFT);
	if (file->map.nr_pages == 0)
		*puts += dc_became_clean_locked(file);
	return gone;
}

uint64_t dc_file_size(struct dc_file *file)
{
	struct stat st;

	return fstat(file->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

uint64_t dc_file_seq(struct dc_file *file)
{
	uint64_t seq;

	pthread_mutex_lock(&file->lock);
	seq = file->write_seq + file->edges;
	pthread_mutex_unlock(&file->lock);
	return seq;
}

static void cancel(struct dc_file *file, uint64_t first, uint64_t last, uint64_t seq)
{
	uint64_t gone = 0;
	int puts = 0;

	pthread_mutex_lock(&file->lock);
	if (file->write_seq + file->edges == seq)
		gone = cancel_locked(file, first, last, &puts);
	puts += dc_settle_locked(file); /* of an unlinked file nothing has to be synced any more */
	dc_file_rest_locked(file);
	pthread_mutex_unlock(&file->lock);
	dc_release(file->exp, gone);
	dc_file_puts(file, puts);
}

void dc_file_truncated(struct dc_file *file, uint64_t new_size, uint64_t seq)
{
	atomic_store(&file->eof, new_size);
	/* The page that holds the new end stays claimed: its head may still be dirty. */
	cancel(file, (new_size >> DC_PAGE_SHIFT) + (new_size % DC_PAGE_SIZE != 0), DC_NO_PAGE - 1,
	       seq);
}

void dc_file_punched(struct dc_file *file, uint64_t offset, uint64_t len, uint64_t seq)
{
	uint64_t first = (offset + DC_PAGE_SIZE - 1) >> DC_PAGE_SHIFT;
	uint64_t end = offset + len < offset ? UINT64_MAX >> DC_PAGE_SHIFT :
					       (offset + len) >> DC_PAGE_SHIFT;

	if (first < end)
		cancel(file, first, end - 1, seq);
}

int dc_unlinked_locked(struct dc_file *file, uint64_t *pages)
{
	int puts = 0;

	file->unlinked = true;
	*pages = cancel_locked(file, 0, DC_NO_PAGE - 1, &puts);
	puts += dc_settle_locked(file);
	if (file->fd >= 0 && file->fd_users == 0) {
		dc_idle_remove_locked(file);
		dc_fd_close(file);
	}
	return puts;
}

bool dc_nameless_locked(struct dc_file *file)
{
	struct stat st;

	return !file->unlinked && file->fd >= 0 && fstat(file->fd, &st) == 0 && st.st_nlink == 0;
}

void dc_file_check_links(struct dc_file *file)
{
	uint64_t pages = 0;
	int puts = 0;

	pthread_mutex_lock(&file->lock);
	if (dc_nameless_locked(file))
		puts = dc_unlinked_locked(file, &pages);
	pthread_mutex_unlock(&file->lock);
	dc_release(file->exp, pages);
	dc_file_puts(file, puts);
}

void dc_file_forget(struct dc_file *file)
{
	uint64_t pages;
	int puts;

	pthread_mutex_lock(&file->lock);
	if (!file->unlinked)
		dc_orphan_leave_locked(file);
	puts = dc_unlinked_locked(file, &pages);
	/* What is in flight may still fail, and then concerns them: dc_error_locked(). */
	if (LIST_EMPTY(&file->turns) && !file->syncing && !file->leader)
		file->nr_writers = 0;
	else
		for (uint32_t i = 0; i < file->nr_writers; i++)
			file->writers[i].err = 0;
	if (file->holds_error_ref) {
		file->holds_error_ref = false;
		atomic_fetch_sub(&file->exp->nr_owing, 1);
		puts++;
	}
	pthread_mutex_unlock(&file->lock);
	dc_release(file->exp, pages);
	dc_file_puts(file, puts);
}
