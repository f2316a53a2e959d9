/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The table of files, and what keeps a file in it.
 *
 * A file is there as long as somebody references it. The engine itself holds up to three references:
 * while it is dirty, while it is unsynced, and while it owes a client an error. So it outlives the
 * eviction of Ganesha's handle, and an error is not forgotten with it.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

/* FNV-1a, seeded by the export: keys are handle bytes, well mixed already. */
static uint64_t hash_of(const struct dc_export *exp, const void *key, size_t len)
{
	const uint8_t *p = key;
	uint64_t h = 0xcbf29ce484222325ULL ^ ((uintptr_t)exp >> 4);

	while (len--)
		h = (h ^ *p++) * 0x100000001b3ULL;
	return h ^ (h >> 32);
}

static struct dc_shard *shard_of(struct dc_engine *eng, uint64_t hash)
{
	return &eng->shard[hash % DC_SHARDS];
}

static uint32_t bucket_of(const struct dc_shard *shard, uint64_t hash)
{
	return (hash / DC_SHARDS) & (shard->cap - 1);
}

static void shard_grow(struct dc_shard *shard)
{
	uint32_t old_cap = shard->cap;
	struct dc_file **old = shard->bucket;

	shard->cap = old_cap ? old_cap * 2 : 16;
	shard->bucket = dc_zalloc(shard->cap * sizeof(*shard->bucket));
	for (uint32_t b = 0; b < old_cap; b++) {
		while (old[b]) {
			struct dc_file *file = old[b];
			uint32_t to = bucket_of(shard, file->hash);

			old[b] = file->hash_next;
			file->hash_next = shard->bucket[to];
			shard->bucket[to] = file;
		}
	}
	free(old);
}

static struct dc_file *file_new(struct dc_export *exp, const void *key, size_t len, uint64_t hash)
{
	struct dc_file *file = dc_zalloc(sizeof(*file));

	file->magic = DC_FILE_MAGIC;
	file->exp = exp;
	file->hash = hash;
	file->key_len = (uint8_t)len;
	memcpy(file->key, key, len);
	pthread_mutex_init(&file->lock, NULL);
	pthread_cond_init(&file->cond, NULL);
	dc_map_init(&file->map);
	LIST_INIT(&file->turns);
	STAILQ_INIT(&file->stables);
	file->fd = -1;
	file->sync_fd = -1;
	file->write_seq = 1;
	file->need_seq = 1;
	file->heap_index = DC_NOT_IN_HEAP;
	atomic_fetch_add(&exp->refs, 1);
	atomic_fetch_add(&exp->nr_files, 1);
	return file;
}

static struct dc_file *lookup(struct dc_export *exp, const void *key, size_t len, bool make)
{
	uint64_t hash = hash_of(exp, key, len);
	struct dc_shard *shard = shard_of(exp->eng, hash);
	struct dc_file *file = NULL;

	dc_assert(exp->magic == DC_EXPORT_MAGIC && len <= DC_KEY_MAX);
	pthread_mutex_lock(&shard->lock);
	if (shard->cap)
		file = shard->bucket[bucket_of(shard, hash)];
	for (; file; file = file->hash_next)
		if (file->hash == hash && file->exp == exp && file->key_len == len &&
		    memcmp(file->key, key, len) == 0)
			break;
	if (file) {
		dc_file_hold(file);
	} else if (make) {
		if (shard->nr >= shard->cap)
			shard_grow(shard);
		file = file_new(exp, key, len, hash);
		file->refs = 1;
		if (atomic_load(&exp->eng->nr_orphans) > 0)
			dc_orphan_adopt(file);
		file->hash_next = shard->bucket[bucket_of(shard, hash)];
		shard->bucket[bucket_of(shard, hash)] = file;
		shard->nr++;
	}
	pthread_mutex_unlock(&shard->lock);
	return file;
}

struct dc_file *dc_file_get(struct dc_export *exp, const void *key, size_t len)
{
	return lookup(exp, key, len, true);
}

struct dc_file *dc_file_find(struct dc_export *exp, const void *key, size_t len)
{
	return lookup(exp, key, len, false);
}

bool dc_file_is_of(const struct dc_file *file, const struct dc_export *exp)
{
	return file->exp == exp;
}

void dc_file_hold(struct dc_file *file)
{
	uint32_t before = atomic_fetch_add(&file->refs, 1);

	dc_assert(file->magic == DC_FILE_MAGIC && before < UINT32_MAX / 2);
}

static void file_free(struct dc_file *file)
{
	struct dc_export *exp = file->exp;

	/* Nobody can find it any more: no lock is needed, and no rule may be left broken. */
	dc_assert(file->map.nr_pages == 0 && LIST_EMPTY(&file->turns) && !file->syncing);
	dc_assert(file->heap_index == DC_NOT_IN_HEAP && !file->on_commit_list);
	dc_assert(file->fd_users == 0 && !file->on_quiet_list);
	dc_assert(STAILQ_EMPTY(&file->stables) && !file->leader);
	dc_idle_remove_locked(file);
	if (file->fd >= 0)
		dc_fd_close(file);
	dc_map_clear(&file->map);
	free(file->behind.run);
	free(file->writers);
	pthread_cond_destroy(&file->cond);
	pthread_mutex_destroy(&file->lock);
	file->magic = 0;
	free(file);
	atomic_fetch_sub(&exp->nr_files, 1);
	dc_export_put(exp);
}

void dc_file_puts(struct dc_file *file, int n)
{
	while (n-- > 0)
		dc_file_put(file);
}

void dc_file_put(struct dc_file *file)
{
	uint32_t refs = atomic_load_explicit(&file->refs, memory_order_relaxed);
	struct dc_shard *shard;
	struct dc_file **at;

	dc_assert(file->magic == DC_FILE_MAGIC && refs > 0);
	while (refs > 1)
		if (atomic_compare_exchange_weak(&file->refs, &refs, refs - 1))
			return;
	/* Maybe the last: only under the lock, so that no lookup revives it. */
	shard = shard_of(file->exp->eng, file->hash);
	pthread_mutex_lock(&shard->lock);
	if (atomic_fetch_sub(&file->refs, 1) > 1) {
		pthread_mutex_unlock(&shard->lock);
		return;
	}
	for (at = &shard->bucket[bucket_of(shard, file->hash)]; *at != file; at = &(*at)->hash_next)
		;
	*at = file->hash_next;
	shard->nr--;
	pthread_mutex_unlock(&shard->lock);
	file_free(file);
}

void dc_files_each(struct dc_export *exp, void (*each)(struct dc_file *file, void *arg), void *arg)
{
	for (int i = 0; i < DC_SHARDS; i++) {
		struct dc_shard *shard = &exp->eng->shard[i];
		struct dc_file **found = NULL, *file;
		uint32_t nr = 0;

		pthread_mutex_lock(&shard->lock);
		if (shard->nr > 0)
			found = dc_zalloc(shard->nr * sizeof(*found));
		for (uint32_t b = 0; b < shard->cap; b++) {
			for (file = shard->bucket[b]; file; file = file->hash_next) {
				if (file->exp != exp)
					continue;
				dc_file_hold(file);
				found[nr++] = file;
			}
		}
		pthread_mutex_unlock(&shard->lock);
		for (uint32_t k = 0; k < nr; k++) {
			each(found[k], arg);
			dc_file_put(found[k]);
		}
		free(found);
	}
}
