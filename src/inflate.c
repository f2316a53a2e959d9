/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Inflation: the kernel counts whole folios dirty.
 *
 * One 4 KiB overwrite in a file that readers have brought into the cache can count 2 MiB against
 * the kernel's dirty limit, because the page lies in a folio of 512 pages. The promise of a budget
 * is about memory, so we count what the kernel counts.
 *
 * A folio is naturally aligned and at most one window (2 MiB) long, so of a write's folios only the
 * two that hold its first and its last page can reach beyond it, and never beyond the windows it
 * touches. And they are there beforehand, or they would be no longer than the write. Hence:
 *
 *     before   is the first or the last page cached?  no:  reserve the pages written
 *                                                     yes: reserve the windows touched
 *     after    in the second case ask the kernel how much of those windows is dirty, claim what
 *              exceeds our claims, give back the rest
 *
 * Where the kernel has no cachestat(2) (before 6.5), or pages of another size than 4 KiB, the pages
 * written are what is counted.
 */
#include <unistd.h>

#include "internal.h"

/* Claims the page, and what else was found dirty in its window beyond its claims, out of
 * `reserved` pages. Nothing locked, descriptor pinned. Returns the pages claimed. */
static uint64_t claim_edge(struct dc_file *file, uint64_t offset, uint64_t reserved)
{
	struct dc_export *exp = file->exp;
	uint64_t page = offset >> DC_PAGE_SHIFT, added = 0;
	struct dc_inflation in = { 0 };

	dc_inflation_ask(file, offset, 1, &in);
	pthread_mutex_lock(&file->lock);
	if (!file->unlinked) {
		bool was_clean = file->map.nr_pages == 0;

		/* By number, not only by count: claims of pages that the kernel cleaned by itself
		 * would make up for it, and end before it is written. */
		added = dc_map_set(&file->map, page, page);
		added += dc_inflation_claim_locked(file, &in, reserved - added);
		if (added > 0 && was_clean)
			dc_became_dirty_locked(file, dc_now(exp->eng));
		atomic_fetch_add(&dc_slot(exp)->dirty, (int64_t)added);
	}
	pthread_mutex_unlock(&file->lock);
	return added;
}

void dc_file_edge(struct dc_file *file, uint64_t offset)
{
	struct dc_export *exp = file->exp;
	struct dc_backend *be = exp->dev->be;
	uint64_t window = offset >> DC_WINDOW_SHIFT << DC_WINDOW_SHIFT, added;
	struct dc_cachestat st;
	bool claimed;
	int res, fd;

	if (offset % DC_PAGE_SIZE == 0 || !be->ops->cachestat)
		return;
	pthread_mutex_lock(&file->lock);
	/* Whatever covers it now must not be cancelled by an operation that began before: see
	 * dc_file_seq(). */
	file->edges++;
	claimed = dc_map_count(&file->map, offset >> DC_PAGE_SHIFT, offset >> DC_PAGE_SHIFT) > 0;
	pthread_mutex_unlock(&file->lock);
	if (claimed ||
	    be->ops->cachestat(be, file->fd, offset >> DC_PAGE_SHIFT << DC_PAGE_SHIFT, DC_PAGE_SIZE,
			       &st) < 0 ||
	    st.dirty == 0)
		return;
	if (dc_admit(exp, DC_WINDOW_PAGES)) {
		added = claim_edge(file, offset, DC_WINDOW_PAGES);
		dc_unreserve(exp, DC_WINDOW_PAGES - added);
		dc_count(exp, DC_CTR_DIRTIED, added << DC_PAGE_SHIFT);
		return;
	}
	/* Through a descriptor of its own: a COMMIT that is under way must not lose its error to this. */
	fd = be->ops->reopen(be, file->fd);
	if (fd < 0)
		fd = file->fd;
	res = be->ops->writeback(be, fd, window, 1UL << DC_WINDOW_SHIFT);
	if (dc_refused(res))
		res = be->ops->sync(be, fd);
	if (res < 0 && !dc_refused(res))
		dc_file_error(file, res);
	if (fd != file->fd)
		close(fd);
}

uint64_t dc_write_windows(uint64_t offset, uint64_t len)
{
	uint64_t first = offset >> DC_WINDOW_SHIFT;
	uint64_t last = (offset + len - 1) >> DC_WINDOW_SHIFT;

	return (last - first + 1) * DC_WINDOW_PAGES;
}

static bool page_cached(struct dc_backend *be, int fd, uint64_t page)
{
	struct dc_cachestat st;

	return be->ops->cachestat(be, fd, page << DC_PAGE_SHIFT, DC_PAGE_SIZE, &st) == 0 &&
	       st.cached > 0;
}

uint64_t dc_write_need(struct dc_file *file, uint64_t offset, uint64_t len)
{
	struct dc_backend *be = file->exp->dev->be;
	uint64_t first = offset >> DC_PAGE_SHIFT;
	uint64_t last = (offset + len - 1) >> DC_PAGE_SHIFT;
	bool left = first % DC_WINDOW_PAGES != 0, right = (last + 1) % DC_WINDOW_PAGES != 0;
	int fd = file->fd; /* pinned: it does not change */
	struct dc_cachestat st;

	/* A stream finds nothing cached where it goes, and whole windows hold whole folios. */
	if (!be->ops->cachestat || (!left && !right) ||
	    be->ops->cachestat(be, fd, first << DC_PAGE_SHIFT, (last - first + 1) << DC_PAGE_SHIFT,
			       &st) < 0 ||
	    st.cached == 0)
		return last - first + 1;
	if ((left && page_cached(be, fd, first)) || (right && page_cached(be, fd, last)))
		return dc_write_windows(offset, len);
	return last - first + 1;
}

void dc_inflation_ask(struct dc_file *file, uint64_t offset, uint64_t len, struct dc_inflation *in)
{
	struct dc_backend *be = file->exp->dev->be;
	uint64_t window = offset >> DC_WINDOW_SHIFT;
	uint64_t last = (offset + len - 1) >> DC_WINDOW_SHIFT;

	in->first = window;
	in->nr = 0;
	for (; window <= last && in->nr < DC_INFLATION_MAX; window++) {
		struct dc_cachestat st;

		if (be->ops->cachestat(be, file->fd, window << DC_WINDOW_SHIFT,
				       1UL << DC_WINDOW_SHIFT, &st) < 0)
			return;
		in->dirty[in->nr++] = dc_min_u64(st.dirty, DC_WINDOW_PAGES);
	}
}

uint64_t dc_inflation_claim_locked(struct dc_file *file, const struct dc_inflation *in,
				   uint64_t max)
{
	uint64_t claimed = 0;

	for (uint32_t i = 0; i < in->nr && claimed < max; i++) {
		uint64_t first = (in->first + i) * DC_WINDOW_PAGES;
		uint64_t last = first + DC_WINDOW_PAGES - 1;
		uint64_t have = dc_map_count(&file->map, first, last);

		if (in->dirty[i] > have)
			claimed += dc_map_fill(&file->map, first, last,
					       dc_min_u64(in->dirty[i] - have, max - claimed));
	}
	return claimed;
}
