/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The audit of R3: does the kernel hold a page dirty because of an NFS write that no claim covers?
 *
 * Asked of each file at a moment when the answer is certain: its lock is held, so that nobody can pin its
 * descriptor and write; nobody has; and no turn or sync is on its way, whose pages are dirty in the kernel
 * and claimed no more. Pages that local processes dirtied look the same and are reported as well.
 */
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend_plain.h"
#include "internal.h"

/* Up to this size a file is compared window by window, beyond it as a whole. */
#define THOROUGH_WINDOWS 32
#define SAY_NS (10 * DC_NS_PER_S)

static bool certain_locked(const struct dc_file *file)
{
	return file->fd >= 0 && !file->unlinked && !file->syncing && LIST_EMPTY(&file->turns) &&
	       STAILQ_EMPTY(&file->stables) && !file->leader && file->fd_users == file->turn_pins;
}

/* Dirty pages of windows [first, end) beyond the claims there; file->lock held. */
static uint64_t excess_locked(struct dc_file *file, uint64_t first, uint64_t end)
{
	struct dc_backend *be = file->exp->dev->be;
	struct dc_cachestat st;
	uint64_t have;

	if (be->ops->cachestat(be, file->fd, first << DC_WINDOW_SHIFT,
			       (end - first) << DC_WINDOW_SHIFT, &st) < 0)
		return 0;
	have = dc_map_count(&file->map, first * DC_WINDOW_PAGES, end * DC_WINDOW_PAGES - 1);
	return st.dirty > have ? st.dirty - have : 0;
}

static void audit_file(struct dc_file *file, void *arg)
{
	struct dc_export *exp = file->exp;
	uint64_t pages = 0, windows, where = 0, now = dc_now(exp->eng), *said = arg;
	struct stat st;

	pthread_mutex_lock(&file->lock);
	if (!certain_locked(file) || fstat(file->fd, &st) < 0) {
		pthread_mutex_unlock(&file->lock);
		return;
	}
	windows = ((uint64_t)st.st_size + (1UL << DC_WINDOW_SHIFT) - 1) >> DC_WINDOW_SHIFT;
	if (windows > THOROUGH_WINDOWS)
		pages = excess_locked(file, 0, windows);
	else
		for (uint64_t w = windows; w-- > 0;) {
			uint64_t n = excess_locked(file, w, w + 1);

			pages += n;
			where = n ? w : where;
		}
	pthread_mutex_unlock(&file->lock);
	dc_count(exp, DC_CTR_AUDITS, 1);
	if (pages == 0)
		return;
	dc_count(exp, DC_CTR_UNCLAIMED, pages << DC_PAGE_SHIFT);
	if (*said != 0 && now - *said < SAY_NS)
		return;
	*said = now;
	dc_log(exp->eng, DC_LOG_ERROR,
	       "export %u (%s): audit: inode %" PRIu64 " has %" PRIu64
	       " KiB dirty that nobody counts, "
	       "the first of them at or after offset %" PRIu64 ". A local process writes to it, or "
	       "this is a bug: please report it",
	       exp->id, exp->path, (uint64_t)st.st_ino, pages << (DC_PAGE_SHIFT - 10),
	       where << DC_WINDOW_SHIFT);
}

bool dc_file_is_sound_locked(const struct dc_file *file)
{
	uint64_t last = dc_map_last(&file->map);
	bool in_heap;

	pthread_mutex_lock(&file->exp->lock);
	in_heap = file->heap_index != DC_NOT_IN_HEAP;
	pthread_mutex_unlock(&file->exp->lock);
	return (file->map.nr_pages == 0 ||
		dc_map_count(&file->map, 0, last) == file->map.nr_pages) &&
	       in_heap == (file->map.nr_pages > 0) && file->synced_seq <= file->write_seq &&
	       file->need_seq <= file->write_seq &&
	       (file->fd >= 0 || (file->fd_users == 0 && file->sync_fd < 0)) &&
	       file->turn_pins <= file->fd_users && (!file->leader || file->sync_fd >= 0);
}

bool dc_heap_is_sound(const struct dc_export *exp)
{
	for (uint32_t i = 1; i < exp->heap_nr; i++)
		if (exp->heap[(i - 1) / 2]->dirtied_when > exp->heap[i]->dirtied_when ||
		    exp->heap[i]->heap_index != i)
			return false;
	return true;
}

void dc_audit_begin(struct dc_file *file, int fd)
{
	struct dc_backend *be = file->exp->dev->be;
	struct dc_cachestat st;
	bool first;
	int fresh;

	pthread_mutex_lock(&file->lock);
	first = file->fd < 0;
	pthread_mutex_unlock(&file->lock);
	if (!first || !be->ops->cachestat || be->ops->cachestat(be, fd, 0, 0, &st) < 0 ||
	    st.dirty == 0)
		return;
	/* Not through `fd`: its errors are for those who commit. And plainly: an injected fault is not meant
	 * for this. */
	fresh = be->ops->reopen(be, fd);
	if (fresh < 0)
		return;
	dc_plain_writeback(be, fresh, 0, 0);
	close(fresh);
}

void dc_audit_export(struct dc_export *exp)
{
	if (exp->dev->be->ops->cachestat)
		dc_files_each(exp, audit_file, &exp->audit_said);
}
