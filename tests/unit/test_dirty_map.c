/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The dirty map against a naive set, on random operations; and what it costs in memory.
 *
 * The reference is one byte per page over a few "islands" of three chunks each, laid where page
 * numbers are small, large (5 TiB) and close to the largest. Ranges may span islands.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dontcache/dirty_map.h"

#define CHUNK 65536ULL

/* One percent of the bytes tracked. Maps of fewer than 64 pages may need up to 64 bytes more: one
 * pointer (8), one leaf (8 + 16) and one array (16) are there for the first page already, and one
 * percent of a page is 40. */
#define FIXED 64

/* ---- the allocator's view: each block carries its size in front ---- */

void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void __real_free(void *p);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void __wrap_free(void *p);

static size_t allocated;

void *__wrap_calloc(size_t n, size_t size)
{
	char *p = __real_calloc(1, n * size + 16);

	if (!p)
		return NULL;
	*(size_t *)(void *)p = n * size;
	allocated += n * size;
	return p + 16;
}

void *__wrap_realloc(void *old, size_t size)
{
	char *p = old ? (char *)old - 16 : NULL;

	if (p)
		allocated -= *(size_t *)(void *)p;
	p = __real_realloc(p, size + 16);
	if (!p)
		return NULL;
	*(size_t *)(void *)p = size;
	allocated += size;
	return p + 16;
}

void __wrap_free(void *old)
{
	char *p = old ? (char *)old - 16 : NULL;

	if (!p)
		return;
	allocated -= *(size_t *)(void *)p;
	__real_free(p);
}

/* ---- random numbers: xorshift64*, so that a seed means the same everywhere ---- */

static uint64_t seed;

static uint64_t rnd(uint64_t n)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (seed * 0x2545f4914f6cdd1dULL >> 16) % n;
}

/* ---- the reference ---- */

#define ISLAND_PAGES (3 * CHUNK)
#define ISLANDS 4

static const uint64_t island_base[ISLANDS] = {
	0, 5 * (1ULL << 40 >> DC_PAGE_SHIFT) - CHUNK - 777, /* 5 TiB: inside, and not aligned */
	(1ULL << 51) + 12345, (1ULL << 52) - ISLAND_PAGES,  /* a file of 16 EiB ends here */
};
static uint8_t island[ISLANDS][ISLAND_PAGES];

static uint64_t ref_count(uint64_t first, uint64_t last)
{
	uint64_t n = 0;

	for (int i = 0; i < ISLANDS; i++) {
		uint64_t p = first > island_base[i] ? first - island_base[i] : 0;

		for (; p < ISLAND_PAGES && island_base[i] + p <= last; p++)
			n += island[i][p];
	}
	return n;
}

static uint64_t ref_nth(uint64_t from, uint64_t n)
{
	uint64_t found = DC_NO_PAGE;

	for (int i = 0; i < ISLANDS; i++) {
		uint64_t p = from > island_base[i] ? from - island_base[i] : 0;

		for (; p < ISLAND_PAGES; p++) {
			if (!island[i][p])
				continue;
			found = island_base[i] + p;
			if (--n == 0)
				return found;
		}
	}
	return found;
}

static uint64_t ref_clear(uint64_t first, uint64_t last)
{
	uint64_t n = 0;

	for (int i = 0; i < ISLANDS; i++) {
		uint64_t p = first > island_base[i] ? first - island_base[i] : 0;

		for (; p < ISLAND_PAGES && island_base[i] + p <= last; p++) {
			n += island[i][p];
			island[i][p] = 0;
		}
	}
	return n;
}

/* Somewhere interesting: chunk borders, word borders, anywhere. */
static uint64_t some_offset(void)
{
	uint64_t p;

	switch (rnd(4)) {
	case 0:
		p = rnd(4) * CHUNK + rnd(7);
		return p < 3 ? p : (p - 3) % ISLAND_PAGES;
	case 1:
		return rnd(ISLAND_PAGES / 64) * 64 + (rnd(2) ? 0 : 63);
	case 2:
		return rnd(600); /* again and again the same place: dense */
	default:
		return rnd(ISLAND_PAGES);
	}
}

static uint64_t some_length(void)
{
	switch (rnd(8)) {
	case 0:
		return 1 + rnd(ISLAND_PAGES);
	case 1:
		return CHUNK - 1 + rnd(3);
	case 2:
		return 512 - 2 + rnd(5); /* where an array becomes a bitmap */
	case 3:
		return 1 + rnd(256);
	default:
		return 1 + rnd(4);
	}
}

static void check_whole(const struct dc_dirty_map *map, uint64_t want)
{
	assert_int_equal(map->nr_pages, want);
	assert_int_equal(map->mem_bytes, allocated);
	assert_int_equal(dc_map_count(map, 0, DC_NO_PAGE - 1), want);
	if (want == 0) {
		assert_int_equal(dc_map_last(map), DC_NO_PAGE);
		assert_int_equal(dc_map_next(map, 0), DC_NO_PAGE);
		assert_int_equal(map->mem_bytes, 0);
	}
}

static void random_ops(unsigned int ops, int islands, unsigned int clear_percent)
{
	struct dc_dirty_map map;
	uint64_t total = 0;

	memset(island, 0, sizeof(island));
	dc_map_init(&map);
	for (unsigned int i = 0; i < ops; i++) {
		int isle = (int)rnd((uint64_t)islands);
		uint64_t off = some_offset(), len = some_length();
		uint64_t first = island_base[isle] + off, last, n, got;

		if (off + len > ISLAND_PAGES)
			len = ISLAND_PAGES - off;
		last = first + len - 1;
		if (rnd(100) < clear_percent) {
			if (rnd(16) == 0)
				last = DC_NO_PAGE - 1; /* truncate */
			if (rnd(64) == 0)
				first = 0;
			n = ref_clear(first, last);
			assert_int_equal(dc_map_clear_range(&map, first, last), n);
			total -= n;
		} else {
			n = 0;
			for (uint64_t p = off; p < off + len; p++) {
				n += !island[isle][p];
				island[isle][p] = 1;
			}
			assert_int_equal(dc_map_set(&map, first, last), n);
			total += n;
		}
		assert_int_equal(map.nr_pages, total);
		assert_int_equal(map.mem_bytes, allocated);
		assert_true(map.mem_bytes <= (total << DC_PAGE_SHIFT) / 100 + FIXED);
		/* Questions about somewhere near, now and then about everything. */
		first = island_base[isle] + some_offset();
		last = first + some_length();
		assert_int_equal(dc_map_count(&map, first, last), ref_count(first, last));
		if (i % 8 == 0) {
			n = 1 + rnd(rnd(2) ? 5000 : 5);
			got = dc_map_nth(&map, first, n);
			assert_int_equal(got, ref_nth(first, n));
			got = dc_map_next(&map, first);
			assert_int_equal(got, ref_nth(first, 1));
		}
		if (i % 64 == 0) {
			assert_int_equal(dc_map_last(&map), ref_nth(0, UINT64_MAX));
			check_whole(&map, total);
		}
	}
	assert_int_equal(dc_map_clear(&map), total);
	assert_int_equal(map.nr_pages, 0);
	assert_int_equal(map.mem_bytes, 0);
	assert_int_equal(allocated, 0);
}

static void test_random(void **state)
{
	(void)state;
	for (uint64_t s = 1; s <= 6; s++) {
		seed = s * 0x9e3779b97f4a7c15ULL;
		print_message("seed %llu\n", (unsigned long long)s);
		random_ops(1500, s % 2 ? ISLANDS : 1, s % 3 == 0 ? 60 : 35);
	}
}

/* Every range of a small universe around a chunk border, from every one of a few patterns. */
static void test_exhaustive_border(void **state)
{
	const uint64_t base = CHUNK - 6;

	(void)state;
	for (unsigned int pattern = 0; pattern < 4096; pattern += 37) {
		for (int first = 0; first < 12; first++) {
			for (int last = first; last < 12; last++) {
				struct dc_dirty_map map;
				unsigned int want = pattern, range = 0, gone;

				dc_map_init(&map);
				for (int i = 0; i < 12; i++) {
					if (pattern >> i & 1)
						dc_map_set(&map, base + i, base + i);
					if (i >= first && i <= last)
						range |= 1U << i;
				}
				gone = (unsigned int)__builtin_popcount(want & range);
				assert_int_equal(dc_map_count(&map, base + first, base + last),
						 gone);
				assert_int_equal(dc_map_set(&map, base + first, base + last),
						 __builtin_popcount(range) - (int)gone);
				want |= range;
				assert_int_equal(dc_map_clear_range(&map, base + first,
								    base + last),
						 __builtin_popcount(range));
				want &= ~range;
				assert_int_equal(map.nr_pages, __builtin_popcount(want));
				for (int i = 0; i < 12; i++)
					assert_int_equal(dc_map_count(&map, base + i, base + i),
							 want >> i & 1);
				assert_int_equal(map.mem_bytes, allocated);
				dc_map_clear(&map);
				assert_int_equal(allocated, 0);
			}
		}
	}
}

/* Thousands of chunks, put in and taken out in any order: leaves split, shrink and go. The
 * reference is one byte per chunk; a chunk holds one page, three, or a run. */
static void test_many_chunks(void **state)
{
	enum { CHUNKS = 6000 };
	static uint8_t has[CHUNKS];
	struct dc_dirty_map map;
	uint64_t total = 0;

	(void)state;
	seed = 42;
	memset(has, 0, sizeof(has));
	dc_map_init(&map);
	for (unsigned int i = 0; i < 40000; i++) {
		uint64_t c = i < 3000 ? i : i < 6000 ? CHUNKS - 1 - (i - 3000) : rnd(CHUNKS);
		uint64_t at = c * CHUNK + c % 1000, n = c % 7 == 0 ? 300 : c % 3 + 1;

		if (i < 6000 || rnd(100) < (i < 22000 ? 40 : 60)) {
			assert_int_equal(dc_map_set(&map, at, at + n - 1), has[c] ? 0 : n);
			total += has[c] ? 0 : n;
			has[c] = 1;
		} else {
			assert_int_equal(dc_map_clear_range(&map, c * CHUNK, (c + 1) * CHUNK - 1),
					 has[c] ? n : 0);
			total -= has[c] ? n : 0;
			has[c] = 0;
		}
		if (i % 16 == 0) {
			uint64_t from = rnd(CHUNKS), next = from;

			while (next < CHUNKS && !has[next])
				next++;
			assert_int_equal(dc_map_next(&map, from * CHUNK),
					 next < CHUNKS ? next * CHUNK + next % 1000 : DC_NO_PAGE);
		}
		if (i % 1024 == 0)
			check_whole(&map, total);
	}
	check_whole(&map, total);
	/* A truncation that takes half of the leaves, then all. */
	total -= dc_map_clear_range(&map, CHUNKS / 2 * CHUNK, DC_NO_PAGE - 1);
	check_whole(&map, total);
	assert_int_equal(dc_map_clear_range(&map, 0, DC_NO_PAGE - 1), total);
	check_whole(&map, 0);
	assert_int_equal(allocated, 0);
}

static void test_nth_when_fewer(void **state)
{
	struct dc_dirty_map map;

	(void)state;
	dc_map_init(&map);
	assert_int_equal(dc_map_nth(&map, 0, 1), DC_NO_PAGE);
	dc_map_set(&map, 10, 12);
	dc_map_set(&map, 5 * CHUNK, 5 * CHUNK + 999);
	assert_int_equal(dc_map_nth(&map, 0, 3), 12);
	assert_int_equal(dc_map_nth(&map, 0, 4), 5 * CHUNK);
	assert_int_equal(dc_map_nth(&map, 11, 2), 12);
	assert_int_equal(dc_map_nth(&map, 0, 1003), 5 * CHUNK + 999);
	assert_int_equal(dc_map_nth(&map, 0, 1004), 5 * CHUNK + 999);
	assert_int_equal(dc_map_nth(&map, 13, UINT64_MAX), 5 * CHUNK + 999);
	assert_int_equal(dc_map_nth(&map, 5 * CHUNK + 1000, 1), DC_NO_PAGE);
	dc_map_clear(&map);
}

static void test_fill(void **state)
{
	struct dc_dirty_map map;
	uint8_t has[600];

	(void)state;
	seed = 5;
	dc_map_init(&map);
	for (int round = 0; round < 2000; round++) {
		uint64_t base = CHUNK - 300, first = rnd(600), last = first + rnd(600 - first);
		uint64_t max = rnd(700), want = 0;

		memset(has, 0, sizeof(has));
		dc_map_clear(&map);
		for (int i = 0; i < 10; i++) {
			uint64_t a = rnd(600), b = a + rnd(dc_min_u64(600 - a, 60));

			dc_map_set(&map, base + a, base + b);
			memset(has + a, 1, b - a + 1);
		}
		for (uint64_t p = first; p <= last && want < max; p++) {
			want += !has[p];
			has[p] = 1;
		}
		assert_int_equal(dc_map_fill(&map, base + first, base + last, max), want);
		for (uint64_t p = 0; p < 600; p++)
			assert_int_equal(dc_map_count(&map, base + p, base + p), has[p]);
	}
	dc_map_clear(&map);
	assert_int_equal(allocated, 0);
}

/* ---- memory ---- */

static void report(const char *what, const struct dc_dirty_map *map, uint64_t fixed)
{
	double percent = 100.0 * (double)map->mem_bytes / (double)(map->nr_pages << DC_PAGE_SHIFT);

	print_message("  %-44s %9llu pages %9llu bytes  %.4f%%\n", what,
		      (unsigned long long)map->nr_pages, (unsigned long long)map->mem_bytes,
		      percent);
	assert_int_equal(map->mem_bytes, allocated);
	assert_true(map->mem_bytes <= (map->nr_pages << DC_PAGE_SHIFT) / 100 + fixed);
}

static void test_memory(void **state)
{
	static const uint64_t tib = (1ULL << 40) >> DC_PAGE_SHIFT;
	struct dc_dirty_map map;

	(void)state;
	dc_map_init(&map);
	for (uint64_t p = 0; p < GiB / PAGE; p += 256) {
		dc_map_set(&map, p, p + 255);
		assert_true(map.mem_bytes <= (map.nr_pages << DC_PAGE_SHIFT) / 100);
	}
	report("1 GiB, sequential 1 MiB", &map, 0);
	dc_map_clear(&map);

	for (uint64_t p = 0; p < GiB / PAGE; p++)
		dc_map_set(&map, p, p);
	report("1 GiB, sequential 4 KiB", &map, 0);
	dc_map_clear(&map);

	seed = 1;
	for (int i = 0; i < 65536; i++) {
		uint64_t p = rnd(tib);

		dc_map_set(&map, p, p);
		assert_true(map.mem_bytes <= (map.nr_pages << DC_PAGE_SHIFT) / 100 +
						     (map.nr_pages < 64 ? FIXED : 0));
	}
	report("65536 random pages of 1 TiB", &map, 0);
	dc_map_clear(&map);

	for (uint64_t p = 0; p < tib; p += DC_WINDOW_PAGES)
		dc_map_set(&map, p, p);
	report("one page every 2 MiB of 1 TiB", &map, 0);
	dc_map_clear(&map);

	for (uint64_t p = 0; p < 4 * tib; p += CHUNK)
		dc_map_set(&map, p + 17, p + 17);
	report("one page every 256 MiB of 4 TiB, ascending", &map, 0);
	dc_map_clear(&map);

	for (uint64_t p = 4 * tib; p > 0; p -= CHUNK)
		dc_map_set(&map, p - 17, p - 17);
	report("one page every 256 MiB of 4 TiB, descending", &map, 0);
	dc_map_clear(&map);

	/* Written densely, then flushed but for one page in each 256 MiB. */
	dc_map_set(&map, 0, tib / 64 - 1);
	for (uint64_t p = 0; p < tib / 64; p += CHUNK)
		dc_map_clear_range(&map, p + 1, p + CHUNK - 1);
	report("what is left of 16 GiB: a page in 256 MiB", &map, 0);
	dc_map_clear(&map);

	for (int pages = 1; pages < 64; pages++) {
		dc_map_clear(&map);
		for (int i = 0; i < pages; i++) {
			uint64_t p = rnd(tib);

			dc_map_set(&map, p, p);
		}
		assert_true(map.mem_bytes <= (map.nr_pages << DC_PAGE_SHIFT) / 100 + FIXED);
	}
	report("63 random pages of 1 TiB (64 bytes over allowed)", &map, FIXED);
	dc_map_clear(&map);

	dc_map_set(&map, 123, 123);
	report("1 page", &map, FIXED);
	dc_map_clear(&map);
	assert_int_equal(allocated, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exhaustive_border),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_many_chunks),
		cmocka_unit_test(test_nth_when_fewer),
		cmocka_unit_test(test_fill),
		cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
