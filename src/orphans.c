/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Errors that outlive their export. An export may be removed and come back while the server runs; NFSv4's
 * verifier is another one then, but NFSv3's is the server's and stays. So a client that is owed an error
 * would be told that all is well by the next export of the same file.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define ORPHANS_MAX 4096

struct dc_orphan {
	uint64_t dev;
	uint32_t export_id; /* a client's handle names it: nobody comes for this through another */
	uint8_t key_len, key[DC_KEY_MAX];
	struct dc_writer *writers;
	uint32_t nr_writers;
	int last_error;
	TAILQ_ENTRY(dc_orphan) link;
};

static void orphan_free(struct dc_orphan *o)
{
	free(o->writers);
	free(o);
}

void dc_orphan_leave_locked(struct dc_file *file)
{
	struct dc_engine *eng = file->exp->eng;
	struct dc_orphan *o, *oldest = NULL;
	uint64_t newest = 0;

	if (!file->holds_error_ref)
		return;
	o = dc_zalloc(sizeof(*o));
	o->dev = file->exp->dev->id;
	o->export_id = file->exp->id;
	o->key_len = file->key_len;
	memcpy(o->key, file->key, file->key_len);
	o->last_error = file->last_error;
	o->writers = dc_zalloc(file->nr_writers * sizeof(*o->writers));
	/* Error numbers start anew: 1 is what is owed, and who was told of the newest is told of it. */
	for (uint32_t i = 0; i < file->nr_writers; i++)
		if (file->writers[i].err && file->writers[i].err_no > newest)
			newest = file->writers[i].err_no;
	/* Also those who were told already: they are known, and not told again. */
	for (uint32_t i = 0; i < file->nr_writers; i++) {
		o->writers[i] = file->writers[i];
		o->writers[i].seq = 0;
		o->writers[i].err_no = o->writers[i].err != 0;
		o->writers[i].told_no = o->writers[i].told_no >= newest;
		o->writers[i].stable_no = o->writers[i].stable_no >= newest;
	}
	o->nr_writers = file->nr_writers;
	pthread_mutex_lock(&eng->orphan_lock);
	TAILQ_INSERT_TAIL(&eng->orphans, o, link);
	if (atomic_fetch_add(&eng->nr_orphans, 1) >= ORPHANS_MAX) {
		oldest = TAILQ_FIRST(&eng->orphans);
		TAILQ_REMOVE(&eng->orphans, oldest, link);
		atomic_fetch_sub(&eng->nr_orphans, 1);
	}
	pthread_mutex_unlock(&eng->orphan_lock);
	if (oldest)
		orphan_free(oldest);
}

void dc_orphan_adopt(struct dc_file *file)
{
	struct dc_engine *eng = file->exp->eng;
	struct dc_orphan *o, *next;

	pthread_mutex_lock(&eng->orphan_lock);
	for (o = TAILQ_FIRST(&eng->orphans); o; o = next) {
		next = TAILQ_NEXT(o, link);
		if (o->dev != file->exp->dev->id || o->export_id != file->exp->id ||
		    o->key_len != file->key_len || memcmp(o->key, file->key, file->key_len) != 0)
			continue;
		TAILQ_REMOVE(&eng->orphans, o, link);
		atomic_fetch_sub(&eng->nr_orphans, 1);
		for (uint32_t i = 0; i < o->nr_writers; i++)
			*dc_writer_new_locked(file) = o->writers[i];
		atomic_store(&file->errors, 1);
		file->last_error = o->last_error;
		if (!file->holds_error_ref) {
			file->holds_error_ref = true;
			atomic_fetch_add(&file->exp->nr_owing, 1);
			dc_file_hold(file);
		}
		orphan_free(o);
	}
	pthread_mutex_unlock(&eng->orphan_lock);
}

void dc_orphans_free(struct dc_engine *eng)
{
	struct dc_orphan *o;

	while ((o = TAILQ_FIRST(&eng->orphans))) {
		TAILQ_REMOVE(&eng->orphans, o, link);
		orphan_free(o);
	}
	pthread_mutex_destroy(&eng->orphan_lock);
}
