/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Which file, and which part of it, is written back next.
 *
 * Files: a binary heap by dirtied_when, so that the oldest is found in O(1) and moved in O(log n).
 *
 * Inside a file: passes. A pass visits in ascending order everything that was dirty when it
 * began; when it ends, no claim is older than its beginning, which becomes dirtied_when. So a file
 * that is written all the time cannot stay "the oldest" for ever, nor can any page of it stay
 * dirty past the pass after next.
 */
#include <stdlib.h>

#include "internal.h"

/* A turn that ends in the middle of a window is shortened to whole windows if that leaves it
 * at least this: the rest is most likely where the writer is now. */
#define TURN_MIN_PAGES DC_WINDOW_PAGES

/* ---- the heap ---- */

static void put_at(struct dc_export *exp, struct dc_file *file, uint32_t i)
{
	exp->heap[i] = file;
	file->heap_index = i;
}

static void sift_up(struct dc_export *exp, struct dc_file *file, uint32_t i)
{
	while (i > 0) {
		uint32_t up = (i - 1) / 2;

		if (exp->heap[up]->dirtied_when <= file->dirtied_when)
			break;
		put_at(exp, exp->heap[up], i);
		i = up;
	}
	put_at(exp, file, i);
}

static void sift_down(struct dc_export *exp, struct dc_file *file, uint32_t i)
{
	for (;;) {
		uint32_t down = 2 * i + 1;

		if (down >= exp->heap_nr)
			break;
		if (down + 1 < exp->heap_nr &&
		    exp->heap[down + 1]->dirtied_when < exp->heap[down]->dirtied_when)
			down++;
		if (file->dirtied_when <= exp->heap[down]->dirtied_when)
			break;
		put_at(exp, exp->heap[down], i);
		i = down;
	}
	put_at(exp, file, i);
}

void dc_heap_insert(struct dc_export *exp, struct dc_file *file)
{
	if (exp->heap_nr == exp->heap_cap) {
		exp->heap_cap = exp->heap_cap ? 2 * exp->heap_cap : 64;
		exp->heap = dc_realloc(exp->heap, exp->heap_cap * sizeof(*exp->heap));
	}
	sift_up(exp, file, exp->heap_nr++);
	dc_audit(dc_heap_is_sound(exp));
}

void dc_heap_remove(struct dc_export *exp, struct dc_file *file)
{
	uint32_t i = file->heap_index;
	struct dc_file *last = exp->heap[--exp->heap_nr];

	dc_assert(i <= exp->heap_nr && (exp->heap[i] == file));
	file->heap_index = DC_NOT_IN_HEAP;
	if (last == file)
		return;
	if (i > 0 && exp->heap[(i - 1) / 2]->dirtied_when > last->dirtied_when)
		sift_up(exp, last, i);
	else
		sift_down(exp, last, i);
	dc_audit(dc_heap_is_sound(exp));
}

void dc_heap_update(struct dc_export *exp, struct dc_file *file, uint64_t dirtied_when)
{
	/* Only ever later. */
	if (dirtied_when <= file->dirtied_when)
		return;
	file->dirtied_when = dirtied_when;
	sift_down(exp, file, file->heap_index);
}

/* ---- the pass ---- */

void dc_pass_begin_locked(struct dc_file *file, uint64_t now)
{
	file->pass_no++;
	file->cursor = 0;
	file->pass_end = dc_map_last(&file->map);
	file->pass_start_ns = now;
}

/* The cursor went past what was dirty when the pass began. */
static void pass_end_locked(struct dc_file *file, uint64_t now)
{
	struct dc_export *exp = file->exp;

	file->passes_done = file->pass_no;
	pthread_mutex_lock(&exp->lock);
	if (file->heap_index != DC_NOT_IN_HEAP)
		dc_heap_update(exp, file, file->pass_start_ns);
	if (file->on_commit_list && file->passes_done >= file->commit_pass) {
		TAILQ_REMOVE(&exp->commits, file, commit_link);
		file->on_commit_list = false;
	}
	pthread_mutex_unlock(&exp->lock);
	dc_file_wake_locked(file);
	dc_pass_begin_locked(file, now);
}

void dc_runs_add(struct dc_runs *runs, uint64_t first, uint64_t end)
{
	if (runs->nr == runs->cap) {
		runs->cap = runs->cap ? 2 * runs->cap : 8;
		runs->run = dc_realloc(runs->run, runs->cap * sizeof(*runs->run));
	}
	runs->run[runs->nr].first = first;
	runs->run[runs->nr].end = end;
	runs->nr++;
}

static void note_windows(struct dc_file *file, uint64_t first, uint64_t end, struct dc_runs *runs)
{
	uint64_t page = first;

	runs->nr = 0;
	while ((page = dc_map_next(&file->map, page)) < end) {
		uint64_t w = page / DC_WINDOW_PAGES;

		if (runs->nr > 0 && runs->run[runs->nr - 1].end == w) {
			runs->run[runs->nr - 1].end++;
		} else {
			dc_runs_add(runs, w, w + 1);
		}
		page = (w + 1) * DC_WINDOW_PAGES;
	}
}

bool dc_take_locked(struct dc_file *file, uint64_t max, uint64_t now, struct dc_take *take,
		    struct dc_runs *runs)
{
	uint64_t first, end, whole, stop;

	dc_held(&file->lock);
	if (file->map.nr_pages == 0)
		return false;
	first = dc_map_next(&file->map, file->cursor);
	if (first == DC_NO_PAGE || first > file->pass_end) {
		pass_end_locked(file, now);
		first = dc_map_next(&file->map, 0);
	}
	/* Up to the end of the window that the pass ends in: what a writer added to that window
	 * since goes along, or each pass would cut it once more. */
	stop = (file->pass_end / DC_WINDOW_PAGES + 1) * DC_WINDOW_PAGES;
	end = dc_min_u64(dc_map_nth(&file->map, first, max) + 1, stop);
	whole = end / DC_WINDOW_PAGES * DC_WINDOW_PAGES;
	if (whole > first && whole < end &&
	    dc_map_count(&file->map, first, whole - 1) >= dc_min_u64(TURN_MIN_PAGES, max))
		end = whole;
	note_windows(file, first, end, runs);
	take->first = first;
	take->end = end;
	take->pages = dc_map_clear_range(&file->map, first, end - 1);
	file->cursor = end;
	dc_assert(take->pages > 0);
	if (file->map.nr_pages > 0 && dc_map_next(&file->map, end) > file->pass_end)
		pass_end_locked(file, now);
	return true;
}

bool dc_take_all_locked(struct dc_file *file, struct dc_take *take, struct dc_runs *runs)
{
	if (file->map.nr_pages == 0)
		return false;
	take->first = dc_map_next(&file->map, 0);
	take->end = dc_map_last(&file->map) + 1;
	note_windows(file, take->first, take->end, runs);
	take->pages = dc_map_clear(&file->map);
	return true;
}

bool dc_runs_next_locked(struct dc_file *file, struct dc_runs *runs, uint64_t *first, uint64_t *end)
{
	while (runs->nr > 0) {
		uint32_t i = runs->nr - 1;
		uint64_t page = dc_map_next(&file->map, runs->run[i].first * DC_WINDOW_PAGES);
		uint64_t dirty = page / DC_WINDOW_PAGES;

		*first = runs->run[i].first;
		*end = runs->run[i].end;
		if (dirty < *end) {
			/* Dirtied again: a later turn will drop it. What follows it remains. */
			*end = dirty;
			runs->run[i].first = dirty + 1;
		}
		if (dirty >= runs->run[i].end - 1)
			runs->nr--;
		if (*end > *first)
			return true;
	}
	return false;
}

void dc_count_cleaned(struct dc_export *exp, uint64_t pages, uint64_t again)
{
	uint64_t left = atomic_fetch_sub(&exp->writeback, pages) - pages;
	uint64_t now = dc_now(exp->eng);

	pthread_mutex_lock(&exp->lock);
	dc_rate_add(&exp->done, now, pages - again);
	/* With nothing under way and nothing to be picked time counts for nothing. */
	if (left == 0 && !atomic_load(&exp->active))
		dc_rate_end(&exp->done, now);
	pthread_mutex_unlock(&exp->lock);
	atomic_fetch_add_explicit(&exp->completed, pages - again, memory_order_relaxed);
}

void dc_count_writeback(struct dc_export *exp, uint64_t pages)
{
	pthread_mutex_lock(&exp->lock);
	dc_rate_begin(&exp->done, dc_now(exp->eng));
	pthread_mutex_unlock(&exp->lock);
	/* In this order, so that nobody sees the pages in neither place. */
	atomic_fetch_add(&exp->writeback, pages);
	atomic_fetch_sub(&dc_slot(exp)->dirty, (int64_t)pages);
}
