/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Errors of writeback and sync: who must be told, and who was.
 *
 * A failed writeback leaves the page clean in the kernel and its data gone; a second fdatasync
 * succeeds. So whoever sees the error records it for every client with writes that no successful sync
 * covered, and each is told once, at its next COMMIT or stable write.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

/* What was told through another connection of the same host, or by a stable write, is kept for so long for
 * the COMMIT of the one that wrote: clients commit within minutes. */
#define TOLD_NS (600 * DC_NS_PER_S)

void dc_owe_locked(struct dc_file *file, struct dc_writer *w, int err)
{
	if (w->err == 0)
		w->err = err;
	w->err_no = atomic_load(&file->errors);
	w->told_at = 0; /* of this one nobody was told yet */
	if (!file->holds_error_ref) {
		file->holds_error_ref = true;
		atomic_fetch_add(&file->exp->nr_owing, 1);
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
	uint32_t owed = 0, unsaid;
	struct stat st = { 0 };
	bool say;

	dc_assert(err < 0);
	dc_held(&file->lock);
	absorb_locked(file);
	atomic_fetch_add(&file->errors, 1);
	for (uint32_t i = 0; i < file->nr_writers; i++) {
		if (file->writers[i].seq > file->synced_seq)
			dc_owe_locked(file, &file->writers[i], err);
		owed += file->writers[i].err != 0;
	}
	file->last_error = err;
	atomic_fetch_add(&exp->error_generation, 1);
	dc_count(exp, DC_CTR_ERRORS, 1);
	pthread_mutex_lock(&exp->lock);
	say = exp->last_error_log == 0 || now - exp->last_error_log > DC_NS_PER_S;
	unsaid = exp->errors_unsaid;
	exp->errors_unsaid = say ? 0 : unsaid + 1;
	if (say)
		exp->last_error_log = now;
	pthread_mutex_unlock(&exp->lock);
	/* I/O that outlived its export: nobody will ask this file any more, but maybe its next one. The
	 * caller references the file. */
	if (atomic_load(&exp->ended) && file->holds_error_ref) {
		dc_orphan_leave_locked(file);
		for (uint32_t i = 0; i < file->nr_writers; i++)
			file->writers[i].err = 0;
		file->holds_error_ref = false;
		atomic_fetch_sub(&exp->nr_owing, 1);
		dc_file_put(file);
	}
	if (say && file->fd >= 0)
		fstat(file->fd, &st);
	if (say)
		dc_log(exp->eng, DC_LOG_ERROR,
		       "export %u (%s): writeback failed in inode %" PRIu64
		       ": %s; %u client(s) with uncommitted data will be told at COMMIT; %u more errors "
		       "since this was said last",
		       exp->id, exp->path, (uint64_t)st.st_ino, strerror(-err), owed, unsaid);
}

/*
 * A client is known by its host's address and its connection. One host may be one client with several
 * connections, which writes through one and commits through another; or one that connected anew; or many
 * clients behind one address. Nobody can tell which, and being told twice does less harm than never:
 *
 *     wrote through this connection ... told, once
 *     wrote through another of this host's .. told here, once, and there as well
 *     never wrote here, other host .... told, once, while anybody is owed an error: it may be one of them
 *                                       under another address
 *
 * A stable write tells as well, but only a COMMIT settles what is owed: a client reports a failed stable
 * write to whoever made it, and that need not be who wrote the lost data. What was told in one of the lesser
 * ways is forgotten after TOLD_NS: that connection, or that COMMIT, may never come.
 */
int dc_told_locked(struct dc_file *file, uint64_t client, bool by_commit)
{
	uint64_t now = atomic_load(&file->errors), known;
	struct dc_writer *w = NULL;
	int err = 0;

	dc_held(&file->lock);
	if (!file->holds_error_ref)
		return 0;
	for (uint32_t i = 0; i < file->nr_writers && !w; i++)
		if (file->writers[i].client == client)
			w = &file->writers[i];
	if (!w) {
		w = dc_writer_new_locked(file);
		w->client = client;
		w->err = file->last_error;
		w->err_no = now;
	}
	known = by_commit ? w->told_no : dc_max_u64(w->told_no, w->stable_no);
	for (uint32_t i = 0; i < file->nr_writers; i++) {
		struct dc_writer *kin = &file->writers[i];

		if (!kin->err || kin->err_no <= known ||
		    DC_CLIENT_HOST(kin->client) != DC_CLIENT_HOST(client))
			continue;
		if (kin == w || !err)
			err = kin->err;
		if (!kin->told_at)
			kin->told_at = dc_now(file->exp->eng);
	}
	if (!by_commit) {
		w->stable_no = now;
		return err;
	}
	err = w->err ? w->err : err;
	w->err = 0;
	w->told_at = 0;
	w->told_no = now;
	return err;
}

static void forget_told(struct dc_file *file, void *arg)
{
	uint64_t *before = arg;
	int puts;

	pthread_mutex_lock(&file->lock);
	for (uint32_t i = 0; i < file->nr_writers; i++) {
		struct dc_writer *w = &file->writers[i];

		if (w->err && w->told_at && w->told_at < *before)
			w->err = 0, w->told_at = 0;
	}
	puts = dc_settle_locked(file);
	pthread_mutex_unlock(&file->lock);
	dc_file_puts(file, puts);
}

void dc_errors_expire(struct dc_export *exp, uint64_t now)
{
	uint64_t before = now > TOLD_NS ? now - TOLD_NS : 0;

	if (atomic_load(&exp->nr_owing) == 0 || exp->errors_looked + TOLD_NS / 10 > now)
		return;
	exp->errors_looked = now;
	dc_files_each(exp, forget_told, &before);
}

int dc_file_told(struct dc_file *file, uint64_t client)
{
	int err, puts;

	pthread_mutex_lock(&file->lock);
	err = dc_told_locked(file, client, true);
	puts = dc_settle_locked(file);
	pthread_mutex_unlock(&file->lock);
	dc_file_puts(file, puts);
	return err;
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

	dc_held(&file->lock);
	if (file->holds_error_ref) {
		uint32_t owed = 0;

		for (uint32_t i = 0; i < file->nr_writers; i++)
			owed += file->writers[i].err != 0;
		if (owed == 0) {
			file->holds_error_ref = false;
			atomic_fetch_sub(&exp->nr_owing, 1);
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
