/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Errors of writeback and sync: who must be told, and who was.
 *
 * A failed writeback leaves the page clean in the kernel and its data gone; a second fdatasync
 * succeeds. So whoever sees the error records it for every client with writes that no successful sync
 * covered, and each is told once, at its next COMMIT or stable write.
 */
#define _GNU_SOURCE
#include <string.h>

#include "internal.h"

void dc_owe_locked(struct dc_file *file, struct dc_writer *w, int err)
{
	if (w->err == 0)
		w->err = err;
	if (!file->holds_error_ref) {
		file->holds_error_ref = true;
		dc_file_hold(file);
	}
}

/* One event in the kernel is told once through each descriptor. What the other one has yet to tell is
 * this, or newer than this and just as well covered by what is recorded next. */
static void absorb_locked(struct dc_file *file)
{
	struct dc_backend *be = file->exp->dev->be;

	if (file->fd >= 0)
		be->ops->error(be, file->fd);
	if (file->sync_fd >= 0)
		be->ops->error(be, file->sync_fd);
}

void dc_error_locked(struct dc_file *file, int err)
{
	struct dc_export *exp = file->exp;
	uint64_t now = dc_now(exp->eng);
	uint32_t owed = 0;
	bool say;

	dc_assert(err < 0);
	absorb_locked(file);
	for (uint32_t i = 0; i < file->nr_writers; i++) {
		if (file->writers[i].seq > file->synced_seq)
			dc_owe_locked(file, &file->writers[i], err);
		owed += file->writers[i].err != 0;
	}
	atomic_fetch_add(&file->errors, 1);
	file->last_error = err;
	atomic_fetch_add(&exp->error_generation, 1);
	dc_count(exp, DC_CTR_ERRORS, 1);
	pthread_mutex_lock(&exp->lock);
	say = exp->last_error_log == 0 || now - exp->last_error_log > DC_NS_PER_S;
	if (say)
		exp->last_error_log = now;
	pthread_mutex_unlock(&exp->lock);
	if (say)
		dc_log(exp->eng, DC_LOG_ERROR,
		       "export %u (%s): writeback failed: %s; %u client(s) with uncommitted data "
		       "will be told at COMMIT",
		       exp->id, exp->path, strerror(-err), owed);
}

int dc_told_locked(struct dc_file *file, uint64_t client)
{
	struct dc_writer *w = NULL, *kin = NULL;
	int err;

	if (!file->holds_error_ref)
		return 0;
	for (uint32_t i = 0; i < file->nr_writers && !w; i++) {
		struct dc_writer *other = &file->writers[i];

		if (other->client == client)
			w = other;
		else if (DC_CLIENT_HOST(other->client) == DC_CLIENT_HOST(client) && other->err)
			kin = other;
	}
	/* The same host by another connection: it connected anew, or uses several. What was owed there is
	 * told here. Two hosts behind one address have each written through their own. */
	if (!w && kin) {
		kin->client = client;
		w = kin;
	}
	if (w) {
		err = w->err;
		w->err = 0;
		return err;
	}
	/* One that never wrote here, while somebody is still owed an error, may be that somebody under
	 * another address: better told in vain than not. Once: from now on it is known. */
	w = dc_writer_new_locked(file);
	w->client = client;
	w->seq = 0;
	w->err = 0;
	return file->last_error;
}

void dc_file_error(struct dc_file *file, int err)
{
	pthread_mutex_lock(&file->lock);
	dc_error_locked(file, err);
	pthread_mutex_unlock(&file->lock);
}

int dc_settle_locked(struct dc_file *file)
{
	struct dc_export *exp = file->exp;
	int puts = 0;

	if (file->holds_error_ref) {
		uint32_t owed = 0;

		for (uint32_t i = 0; i < file->nr_writers; i++)
			owed += file->writers[i].err != 0;
		if (owed == 0) {
			file->holds_error_ref = false;
			puts++;
		}
	}
	if (file->holds_sync_ref && (file->unlinked || file->synced_seq >= file->need_seq)) {
		pthread_mutex_lock(&exp->lock);
		if (file->on_quiet_list) {
			TAILQ_REMOVE(&exp->quiet, file, quiet_link);
			file->on_quiet_list = false;
		}
		pthread_mutex_unlock(&exp->lock);
		file->holds_sync_ref = false;
		atomic_fetch_sub(&exp->nr_unsynced, 1);
		puts++;
	}
	return puts;
}
