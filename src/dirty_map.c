/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The dirty map: a two-level sorted array of chunks, each chunk holding its pages in whichever of
 * three forms is smallest (the idea of "roaring" bitmaps, cut down to what a dirty map needs).
 *
 *   leaves[]  ->  leaf: up to 256 chunks, sorted    ->  chunk: 65536 pages = 256 MiB
 *                                                        INLINE  up to 4 page numbers in place
 *                                                        ARRAY   up to 512 sorted 16-bit numbers
 *                                                        BITMAP  8 KiB
 *
 * Streaming writers live in BITMAP chunks, where setting 1 MiB is four whole words; random 4 KiB
 * writers live in ARRAYs. Two levels keep an insertion in front of many chunks cheap: it moves at
 * most one leaf (4 KiB), and a split moves a pointer array 1/128 the size.
 */
#include "dontcache/dirty_map.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

#define CHUNK_SHIFT 16
#define CHUNK_PAGES (1UL << CHUNK_SHIFT)
#define CHUNK_MASK (CHUNK_PAGES - 1)

#define INLINE_MAX 4
#define ARRAY_MAX 512 /* 1 KiB to move at most, and a bitmap past it costs <= 16 bytes a page */
/* A bitmap with so few becomes an array again, or it would cost over 1%; not at ARRAY_MAX, or a
 * writer and the flusher behind it would convert it to and fro. */
#define BITMAP_MIN 256
#define BITMAP_WORDS (CHUNK_PAGES / 64)
#define LEAF_MAX 256

enum chunk_kind { INLINE, ARRAY, BITMAP };

struct chunk {
	uint64_t key : 44;  /* page number >> CHUNK_SHIFT */
	uint64_t kind : 2;  /* enum chunk_kind */
	uint64_t card : 18; /* set pages, 1..65536; a chunk with none is removed */
	union {
		uint16_t in[INLINE_MAX];
		uint16_t *arr; /* capacity: array_cap(card) */
		uint64_t *bits;
	};
};

_Static_assert(sizeof(struct chunk) == 16, "the memory bound in dirty_map.h counts on it");

struct dc_map_leaf {
	uint32_t nr;
	struct chunk c[];
};

/* Leaves start small, or the map of a small file would be 4 KiB of nothing. */
static size_t leaf_bytes(uint32_t cap)
{
	return offsetof(struct dc_map_leaf, c) + cap * sizeof(struct chunk);
}

static uint32_t leaf_cap(uint32_t nr)
{
	uint32_t cap = 1;

	while (cap < nr)
		cap *= 2;
	return cap;
}

static uint32_t array_cap(uint32_t card)
{
	uint32_t cap = 8;

	while (cap < card)
		cap *= 2;
	return cap;
}

/* ---- page numbers inside a chunk ---- */

/* index of the first element >= v */
static uint32_t lower_bound(const uint16_t *a, uint32_t n, uint32_t v)
{
	uint32_t lo = 0;

	while (n > 0) {
		uint32_t half = n / 2;

		if (a[lo + half] < v) {
			lo += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return lo;
}

static const uint16_t *numbers(const struct chunk *c)
{
	return c->kind == INLINE ? c->in : c->arr;
}

static uint64_t word_mask(uint32_t w, uint32_t first, uint32_t last)
{
	uint64_t m = ~0ULL;

	if (w == first / 64)
		m &= ~0ULL << (first % 64);
	if (w == last / 64)
		m &= ~0ULL >> (63 - last % 64);
	return m;
}

static uint32_t bits_count(const uint64_t *bits, uint32_t first, uint32_t last)
{
	uint32_t n = 0;

	for (uint32_t w = first / 64; w <= last / 64; w++)
		n += __builtin_popcountll(bits[w] & word_mask(w, first, last));
	return n;
}

static uint32_t bits_set(uint64_t *bits, uint32_t first, uint32_t last)
{
	uint32_t n = 0;

	for (uint32_t w = first / 64; w <= last / 64; w++) {
		uint64_t m = word_mask(w, first, last);

		n += __builtin_popcountll(m & ~bits[w]);
		bits[w] |= m;
	}
	return n;
}

static uint32_t bits_clear(uint64_t *bits, uint32_t first, uint32_t last)
{
	uint32_t n = 0;

	for (uint32_t w = first / 64; w <= last / 64; w++) {
		uint64_t m = word_mask(w, first, last);

		n += __builtin_popcountll(m & bits[w]);
		bits[w] &= ~m;
	}
	return n;
}

static uint32_t chunk_count(const struct chunk *c, uint32_t first, uint32_t last)
{
	if (first == 0 && last == CHUNK_MASK)
		return c->card;
	if (c->kind == BITMAP)
		return bits_count(c->bits, first, last);
	return lower_bound(numbers(c), c->card, last + 1) - lower_bound(numbers(c), c->card, first);
}

static size_t chunk_mem(const struct chunk *c)
{
	switch (c->kind) {
	case ARRAY:
		return array_cap(c->card) * sizeof(uint16_t);
	case BITMAP:
		return BITMAP_WORDS * sizeof(uint64_t);
	default:
		return 0;
	}
}

static void chunk_free(struct dc_dirty_map *map, struct chunk *c)
{
	map->mem_bytes -= chunk_mem(c);
	if (c->kind == ARRAY)
		free(c->arr);
	else if (c->kind == BITMAP)
		free(c->bits);
}

static void to_bitmap(struct dc_dirty_map *map, struct chunk *c)
{
	uint64_t *bits = dc_zalloc(BITMAP_WORDS * sizeof(uint64_t));
	const uint16_t *a = numbers(c);

	for (uint32_t i = 0; i < c->card; i++)
		bits[a[i] / 64] |= 1ULL << (a[i] % 64);
	chunk_free(map, c);
	c->kind = BITMAP;
	c->bits = bits;
	map->mem_bytes += BITMAP_WORDS * sizeof(uint64_t);
}

static void to_array(struct dc_dirty_map *map, struct chunk *c)
{
	uint32_t cap = array_cap(c->card), n = 0;
	uint16_t *arr = dc_zalloc(cap * sizeof(*arr));

	for (uint32_t w = 0; w < BITMAP_WORDS && n < c->card; w++)
		for (uint64_t m = c->bits[w]; m; m &= m - 1)
			arr[n++] = (uint16_t)(w * 64 + __builtin_ctzll(m));
	chunk_free(map, c);
	if (c->card <= INLINE_MAX) {
		c->kind = INLINE;
		memcpy(c->in, arr, c->card * sizeof(*arr));
		free(arr);
		return;
	}
	c->kind = ARRAY;
	c->arr = arr;
	map->mem_bytes += cap * sizeof(*arr);
}

/* Makes the numbers of a thin chunk: [0, lo) kept, `add` numbers from `first`, [hi, card) kept. */
static void splice(struct dc_dirty_map *map, struct chunk *c, uint32_t lo, uint32_t hi,
		   uint32_t first, uint32_t add)
{
	uint32_t card = c->card - (hi - lo) + add;
	const uint16_t *old = numbers(c);
	uint32_t tail = c->card - hi;
	uint16_t in[INLINE_MAX];
	uint16_t *to;

	assert(card <= ARRAY_MAX);
	if (card <= INLINE_MAX) {
		to = in;
	} else if (c->kind == ARRAY && array_cap(card) == array_cap(c->card)) {
		to = c->arr;
	} else {
		to = dc_zalloc(array_cap(card) * sizeof(uint16_t));
		map->mem_bytes += array_cap(card) * sizeof(uint16_t);
	}
	memmove(to + lo + add, old + hi, tail * sizeof(*to));
	if (to != old)
		memcpy(to, old, lo * sizeof(*to));
	for (uint32_t i = 0; i < add; i++)
		to[lo + i] = (uint16_t)(first + i);
	if (to != old)
		chunk_free(map, c);
	c->card = card;
	if (to == in) {
		c->kind = INLINE;
		memcpy(c->in, in, sizeof(in));
	} else {
		c->kind = ARRAY;
		c->arr = to;
	}
}

static uint32_t chunk_set(struct dc_dirty_map *map, struct chunk *c, uint32_t first, uint32_t last)
{
	uint32_t lo, hi, n;

	if (c->kind != BITMAP) {
		lo = lower_bound(numbers(c), c->card, first);
		hi = lower_bound(numbers(c), c->card, last + 1);
		n = last - first + 1 - (hi - lo);
		if (c->card + n <= ARRAY_MAX) {
			if (n > 0)
				splice(map, c, lo, hi, first, last - first + 1);
			return n;
		}
		to_bitmap(map, c);
	}
	n = bits_set(c->bits, first, last);
	c->card += n;
	return n;
}

static uint32_t chunk_clear(struct dc_dirty_map *map, struct chunk *c, uint32_t first,
			    uint32_t last)
{
	uint32_t lo, hi, n;

	if (c->kind == BITMAP) {
		n = bits_clear(c->bits, first, last);
		c->card -= n;
		if (c->card > 0 && c->card <= BITMAP_MIN)
			to_array(map, c);
		return n;
	}
	lo = lower_bound(numbers(c), c->card, first);
	hi = lower_bound(numbers(c), c->card, last + 1);
	if (hi > lo)
		splice(map, c, lo, hi, 0, 0);
	return hi - lo;
}

/* The n-th set page (n from 1) at or after `from`. Returns false and lowers *n if there are fewer;
 * *out is then the last one, if there is any. */
static bool chunk_nth(const struct chunk *c, uint32_t from, uint64_t *n, uint32_t *out, bool *any)
{
	if (c->kind != BITMAP) {
		const uint16_t *a = numbers(c);
		uint32_t i = lower_bound(a, c->card, from);
		uint32_t have = c->card - i;

		if (have == 0)
			return false;
		*any = true;
		if (have >= *n) {
			*out = a[i + *n - 1];
			return true;
		}
		*n -= have;
		*out = a[c->card - 1];
		return false;
	}
	for (uint32_t w = from / 64; w < BITMAP_WORDS; w++) {
		uint64_t m = c->bits[w];
		uint32_t have;

		if (w == from / 64)
			m &= ~0ULL << (from % 64);
		if (m == 0)
			continue;
		*any = true;
		have = __builtin_popcountll(m);
		if (have < *n) {
			*n -= have;
			*out = w * 64 + 63 - __builtin_clzll(m);
			continue;
		}
		while (*n > 1) {
			m &= m - 1;
			--*n;
		}
		*out = w * 64 + __builtin_ctzll(m);
		return true;
	}
	return false;
}

/* ---- leaves ---- */

/* The last leaf whose first chunk is <= key (or leaf 0). */
static uint32_t leaf_of(const struct dc_dirty_map *map, uint64_t key)
{
	uint32_t lo = 0, n = map->nr_leaves;

	while (n > 1) {
		uint32_t half = n / 2;

		if (map->leaves[lo + half]->c[0].key <= key) {
			lo += half;
			n -= half;
		} else {
			n = half;
		}
	}
	return lo;
}

/* Index of the first chunk in the leaf with a key >= key. */
static uint32_t slot_of(const struct dc_map_leaf *leaf, uint64_t key)
{
	uint32_t lo = 0, n = leaf->nr;

	while (n > 0) {
		uint32_t half = n / 2;

		if (leaf->c[lo + half].key < key) {
			lo += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return lo;
}

/* A position in the map: the first chunk with a key >= key; false at the end. */
static bool seek(const struct dc_dirty_map *map, uint64_t key, uint32_t *li, uint32_t *ci)
{
	if (map->nr_leaves == 0)
		return false;
	*li = leaf_of(map, key);
	*ci = slot_of(map->leaves[*li], key);
	if (*ci == map->leaves[*li]->nr) {
		++*li;
		*ci = 0;
	}
	return *li < map->nr_leaves;
}

static void leaves_insert(struct dc_dirty_map *map, uint32_t at, struct dc_map_leaf *leaf)
{
	if (map->nr_leaves == map->cap_leaves) {
		uint32_t cap = map->cap_leaves ? map->cap_leaves * 2 : 1;

		map->leaves = dc_realloc(map->leaves, cap * sizeof(leaf));
		map->mem_bytes += (cap - map->cap_leaves) * sizeof(leaf);
		map->cap_leaves = cap;
	}
	memmove(map->leaves + at + 1, map->leaves + at, (map->nr_leaves - at) * sizeof(leaf));
	map->leaves[at] = leaf;
	map->nr_leaves++;
}

static struct chunk *chunk_insert(struct dc_dirty_map *map, uint64_t key)
{
	struct dc_map_leaf *leaf;
	uint32_t li, ci;

	if (map->nr_leaves == 0) {
		leaf = dc_zalloc(leaf_bytes(1));
		map->mem_bytes += leaf_bytes(1);
		leaves_insert(map, 0, leaf);
	}
	li = leaf_of(map, key);
	leaf = map->leaves[li];
	if (leaf->nr == LEAF_MAX) {
		/* Split in the middle, except at the right end: files grow there, and halves
		 * that nobody fills again would waste half the memory. */
		bool append = li + 1 == map->nr_leaves && leaf->c[LEAF_MAX - 1].key < key;
		uint32_t keep = append ? LEAF_MAX : LEAF_MAX / 2;
		uint32_t moved = LEAF_MAX - keep;
		struct dc_map_leaf *right = dc_zalloc(leaf_bytes(leaf_cap(moved)));

		map->mem_bytes += leaf_bytes(leaf_cap(moved));
		memcpy(right->c, leaf->c + keep, moved * sizeof(struct chunk));
		right->nr = moved;
		leaf->nr = keep;
		if (moved) {
			leaf = dc_realloc(leaf, leaf_bytes(keep));
			map->mem_bytes -= leaf_bytes(LEAF_MAX) - leaf_bytes(keep);
			map->leaves[li] = leaf;
		}
		leaves_insert(map, li + 1, right);
		if (append || right->c[0].key <= key) {
			li++;
			leaf = right;
		}
	}
	ci = slot_of(leaf, key);
	if (leaf->nr > 0 && leaf->nr == leaf_cap(leaf->nr)) {
		uint32_t cap = leaf_cap(leaf->nr + 1);

		leaf = dc_realloc(leaf, leaf_bytes(cap));
		map->mem_bytes += leaf_bytes(cap) - leaf_bytes(leaf->nr);
		map->leaves[li] = leaf;
	}
	memmove(leaf->c + ci + 1, leaf->c + ci, (leaf->nr - ci) * sizeof(struct chunk));
	memset(&leaf->c[ci], 0, sizeof(struct chunk));
	leaf->c[ci].key = key;
	leaf->c[ci].kind = INLINE;
	leaf->nr++;
	return &leaf->c[ci];
}

static void chunk_remove(struct dc_dirty_map *map, uint32_t li, uint32_t ci)
{
	struct dc_map_leaf *leaf = map->leaves[li];
	uint32_t cap = leaf_cap(leaf->nr);

	chunk_free(map, &leaf->c[ci]);
	memmove(leaf->c + ci, leaf->c + ci + 1, (leaf->nr - ci - 1) * sizeof(struct chunk));
	leaf->nr--;
	if (leaf->nr == 0) {
		map->mem_bytes -= leaf_bytes(cap);
		free(leaf);
		map->nr_leaves--;
		memmove(map->leaves + li, map->leaves + li + 1,
			(map->nr_leaves - li) * sizeof(leaf));
	} else if (leaf_cap(leaf->nr) != cap) {
		map->mem_bytes -= leaf_bytes(cap) - leaf_bytes(leaf_cap(leaf->nr));
		map->leaves[li] = dc_realloc(leaf, leaf_bytes(leaf_cap(leaf->nr)));
	}
}

/* ---- the map ---- */

void dc_map_init(struct dc_dirty_map *map)
{
	memset(map, 0, sizeof(*map));
}

uint64_t dc_map_clear(struct dc_dirty_map *map)
{
	uint64_t n = map->nr_pages;

	for (uint32_t l = 0; l < map->nr_leaves; l++) {
		for (uint32_t i = 0; i < map->leaves[l]->nr; i++)
			chunk_free(map, &map->leaves[l]->c[i]);
		free(map->leaves[l]);
	}
	free(map->leaves);
	dc_map_init(map);
	return n;
}

uint64_t dc_map_set(struct dc_dirty_map *map, uint64_t first, uint64_t last)
{
	uint64_t added = 0;

	assert(first <= last && last < DC_NO_PAGE);
	for (uint64_t key = first >> CHUNK_SHIFT; key <= last >> CHUNK_SHIFT; key++) {
		uint32_t a = key == first >> CHUNK_SHIFT ? first & CHUNK_MASK : 0;
		uint32_t b = key == last >> CHUNK_SHIFT ? last & CHUNK_MASK : CHUNK_MASK;
		struct chunk *c;
		uint32_t li, ci;

		if (seek(map, key, &li, &ci) && map->leaves[li]->c[ci].key == key)
			c = &map->leaves[li]->c[ci];
		else
			c = chunk_insert(map, key);
		added += chunk_set(map, c, a, b);
	}
	map->nr_pages += added;
	return added;
}

uint64_t dc_map_clear_range(struct dc_dirty_map *map, uint64_t first, uint64_t last)
{
	uint64_t gone = 0;
	uint32_t li, ci;

	assert(first <= last);
	while (seek(map, first >> CHUNK_SHIFT, &li, &ci)) {
		struct chunk *c = &map->leaves[li]->c[ci];
		uint64_t base = (uint64_t)c->key << CHUNK_SHIFT;
		uint32_t a, b;

		if (base > last)
			break;
		a = base < first ? first & CHUNK_MASK : 0;
		b = last - base < CHUNK_PAGES ? last - base : CHUNK_MASK;
		gone += chunk_clear(map, c, a, b);
		if (c->card == 0)
			chunk_remove(map, li, ci);
		if (last - base < CHUNK_PAGES)
			break;
		first = base + CHUNK_PAGES;
	}
	map->nr_pages -= gone;
	if (map->nr_pages == 0)
		dc_map_clear(map);
	return gone;
}

uint64_t dc_map_count(const struct dc_dirty_map *map, uint64_t first, uint64_t last)
{
	uint64_t n = 0;
	uint32_t li, ci;

	assert(first <= last);
	if (!seek(map, first >> CHUNK_SHIFT, &li, &ci))
		return 0;
	for (; li < map->nr_leaves; li++, ci = 0) {
		const struct dc_map_leaf *leaf = map->leaves[li];

		for (; ci < leaf->nr; ci++) {
			uint64_t base = (uint64_t)leaf->c[ci].key << CHUNK_SHIFT;

			if (base > last)
				return n;
			n += chunk_count(&leaf->c[ci], base < first ? first & CHUNK_MASK : 0,
					 last - base < CHUNK_PAGES ? last - base : CHUNK_MASK);
		}
	}
	return n;
}

uint64_t dc_map_nth(const struct dc_dirty_map *map, uint64_t from, uint64_t n)
{
	uint64_t found = DC_NO_PAGE;
	uint32_t li, ci;

	assert(n > 0);
	if (!seek(map, from >> CHUNK_SHIFT, &li, &ci))
		return DC_NO_PAGE;
	for (; li < map->nr_leaves; li++, ci = 0) {
		const struct dc_map_leaf *leaf = map->leaves[li];

		for (; ci < leaf->nr; ci++) {
			uint64_t base = (uint64_t)leaf->c[ci].key << CHUNK_SHIFT;
			bool any = false;
			uint32_t at = 0;
			bool hit = chunk_nth(&leaf->c[ci], base < from ? from & CHUNK_MASK : 0, &n,
					     &at, &any);

			if (any)
				found = base + at;
			if (hit)
				return found;
		}
	}
	return found;
}

uint64_t dc_map_next(const struct dc_dirty_map *map, uint64_t from)
{
	return dc_map_nth(map, from, 1);
}

uint64_t dc_map_fill(struct dc_dirty_map *map, uint64_t first, uint64_t last, uint64_t max)
{
	uint64_t done = 0;

	while (first <= last && done < max) {
		uint64_t set = dc_map_next(map, first);
		uint64_t end = set == DC_NO_PAGE || set > last ? last + 1 : set;

		if (end > first) {
			if (end - first > max - done)
				end = first + max - done;
			done += dc_map_set(map, first, end - 1);
			first = end;
		} else {
			first++;
		}
	}
	return done;
}

uint64_t dc_map_last(const struct dc_dirty_map *map)
{
	const struct dc_map_leaf *leaf;
	uint64_t n = UINT64_MAX;
	uint32_t at = 0;
	bool any = false;

	if (map->nr_leaves == 0)
		return DC_NO_PAGE;
	leaf = map->leaves[map->nr_leaves - 1];
	chunk_nth(&leaf->c[leaf->nr - 1], 0, &n, &at, &any);
	return ((uint64_t)leaf->c[leaf->nr - 1].key << CHUNK_SHIFT) + at;
}
