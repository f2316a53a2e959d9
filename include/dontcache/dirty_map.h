/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The dirty map of one file: which of its 4 KiB pages a client has written and nobody has yet
 * handed to the device.
 *
 * It holds no data and is never asked about data (docs/rules.md, R1, R2): it decides only when
 * I/O starts, and counts. So it may be wrong in one direction, by claiming too much (R4).
 *
 * Memory: 16 bytes per 256 MiB chunk that has anything dirty, plus at most 2 bytes for each
 * page while a chunk is thin and a flat 8 KiB once it is dense; always less than 1% of the bytes
 * tracked (tests/unit/test_dirty_map.c measures it, sequential and random).
 *
 * Not locked: the owner (struct dc_file) serialises.
 */
#ifndef DONTCACHE_DIRTY_MAP_H
#define DONTCACHE_DIRTY_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DC_PAGE_SHIFT 12
#define DC_PAGE_SIZE (1UL << DC_PAGE_SHIFT)

/* 2 MiB: the largest folio that the page cache makes on x86-64, so a range aligned to it never
 * cuts a folio. Flushing and dropping are done in whole windows for that reason. */
#define DC_WINDOW_SHIFT 21
#define DC_WINDOW_PAGES (1UL << (DC_WINDOW_SHIFT - DC_PAGE_SHIFT))

/* "no such page" */
#define DC_NO_PAGE UINT64_MAX

struct dc_map_leaf;

struct dc_dirty_map {
	struct dc_map_leaf **leaves; /* sorted by their first chunk */
	uint32_t nr_leaves, cap_leaves;
	uint64_t nr_pages;  /* pages set */
	uint64_t mem_bytes; /* heap bytes in use, allocator overhead not counted */
};

/** Makes an empty map. Allocates nothing. */
void dc_map_init(struct dc_dirty_map *map);

/** Empties the map and frees what it holds. Returns the number of pages that were set. */
uint64_t dc_map_clear(struct dc_dirty_map *map);

/**
 * Sets pages [first, last], both included.
 * @return how many of them were not set before. Aborts when memory is exhausted, as Ganesha does.
 */
uint64_t dc_map_set(struct dc_dirty_map *map, uint64_t first, uint64_t last);

/** Sets up to `max` of the unset pages in [first, last], the lowest first; returns how many. */
uint64_t dc_map_fill(struct dc_dirty_map *map, uint64_t first, uint64_t last, uint64_t max);

/** Clears pages [first, last], both included; returns how many of them were set. */
uint64_t dc_map_clear_range(struct dc_dirty_map *map, uint64_t first, uint64_t last);

/** Counts the set pages in [first, last], both included. */
uint64_t dc_map_count(const struct dc_dirty_map *map, uint64_t first, uint64_t last);

/** The first set page at or after `from`, or DC_NO_PAGE. */
uint64_t dc_map_next(const struct dc_dirty_map *map, uint64_t from);

/** The last set page, or DC_NO_PAGE when the map is empty. */
uint64_t dc_map_last(const struct dc_dirty_map *map);

/**
 * The position of the n-th set page (n counts from 1) at or after `from`; if there are fewer,
 * that of the last one. DC_NO_PAGE if there is none at all.
 */
uint64_t dc_map_nth(const struct dc_dirty_map *map, uint64_t from, uint64_t n);

#endif
