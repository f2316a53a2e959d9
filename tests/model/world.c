/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The world of the model test: page caches, a device that obeys, and committers. See model.h. */
#include "model.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world *W;
char model_dir[64];

/* ---- waiting in the engine is yielding to the sequence ---- */

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_sched_getcpu(void);

static void yield(struct committer *co, enum co_state state)
{
	co->state = state;
	W->running = NULL;
	sem_post(&co->back);
	while (sem_wait(&co->go) < 0)
		;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	struct committer *co = W ? W->running : NULL;

	if (!co)
		return __real_pthread_cond_wait(cond, lock);
	pthread_mutex_unlock(lock);
	yield(co, CO_WAITING);
	pthread_mutex_lock(lock);
	return 0;
}

/* Which slot is used must not depend on the machine. */
int __wrap_sched_getcpu(void)
{
	if (!W)
		return 0;
	W->rng = W->rng * 6364136223846793005ULL + 1442695040888963407ULL;
	return (int)(W->rng >> 33 & 7);
}

void co_resume(struct committer *co)
{
	W->running = co;
	sem_post(&co->go);
	while (sem_wait(&co->back) < 0)
		;
}

static void commit(struct committer *co)
{
	struct mfile *mf = co->mf;
	struct dc_file *file = dc_file_get(W->exp, &mf->nr, sizeof(mf->nr));

	if (!dc_commit_is_free(file, DC_CLIENT(co->client / 2, co->client), &co->res)) {
		mfile_open(mf);
		co->res = dc_commit(mf->file, DC_CLIENT(co->client / 2, co->client), co->offset,
				    co->len);
		dc_write_unpin(file);
	}
	dc_file_put(file);
}

static void *committer_thread(void *arg)
{
	struct committer *co = arg;

	for (;;) {
		while (sem_wait(&co->go) < 0)
			;
		if (co->quit)
			return NULL;
		commit(co);
		co->state = CO_DONE;
		W->running = NULL;
		sem_post(&co->back);
	}
}

struct committer committers[NR_COMMITTERS];

void pool_start(void)
{
	for (int i = 0; i < NR_COMMITTERS; i++) {
		sem_init(&committers[i].go, 0, 0);
		sem_init(&committers[i].back, 0, 0);
		if (pthread_create(&committers[i].thread, NULL, committer_thread, &committers[i]))
			abort();
	}
}

void pool_stop(void)
{
	for (int i = 0; i < NR_COMMITTERS; i++) {
		committers[i].quit = true;
		sem_post(&committers[i].go);
		pthread_join(committers[i].thread, NULL);
	}
}

/* ---- the page cache and the device ---- */

static int take_error(int fd)
{
	struct mfile *mf = W->by_fd[fd];

	if (W->cursor[fd] == mf->err_events)
		return 0;
	W->cursor[fd] = mf->err_events;
	mf->err_seen = true;
	return mf->last_err;
}

static void opened(struct mfile *mf, int fd)
{
	check(fd >= 0 && fd < NR_FDS, "cannot open %s: %s", mf->path, strerror(errno));
	W->by_fd[fd] = mf;
	W->cursor[fd] = mf->err_events - (mf->err_events && !mf->err_seen);
}

/* An error takes version `ver` of a page. */
static void lose(struct mfile *mf, uint64_t p, version ver)
{
	version settled = mf->safe[p] > mf->gone[p] ? mf->safe[p] : mf->gone[p];

	if (mf->lost[p] > settled)
		settled = mf->lost[p]; /* an error that was counted */
	if (ver <= settled)
		return;
	mf->lost[p] = ver;
	mf->lost_at[p] = ++W->event;
	mf->err_events++;
	mf->err_seen = false;
	mf->last_err = W->dice >> 20 & 1 ? -EIO : -ENOSPC;
	for (int c = 0; c < NR_CLIENTS; c++) {
		uint64_t seq = mf->of_seq[c][p];

		if (mf->of[c][p] > settled && mf->of[c][p] <= ver &&
		    (mf->must_seq[c] == 0 || seq < mf->must_seq[c]))
			mf->must_seq[c] = seq;
	}
}

void device_forgets(struct mfile *mf)
{
	for (uint64_t p = 0; p < NR_PAGES; p++)
		if (mf->unrecorded[p] && !W->strict)
			return;
	for (uint64_t p = 0; p < NR_PAGES; p++)
		lose(mf, p, mf->sent[p]);
}

/* The device is given what is dirty in the range, or an error eats it. Returns the pages that are
 * under writeback now: to be given to land(). */
static bool *send_range(struct mfile *mf, uint64_t first, uint64_t end, bool strict)
{
	bool fail = !W->automatic && (W->dice & 0xff) < 32;
	bool *flight = dc_zalloc(NR_PAGES);

	if (end > NR_PAGES)
		end = NR_PAGES;
	for (uint64_t p = first; fail && !W->strict && p < end; p++)
		fail = mf->unrecorded[p] == 0;
	for (uint64_t p = first; p < end; p++) {
		if (!mf->dirty[p] || (mf->under_wb[p] && !strict))
			continue;
		mf->dirty[p] = false;
		flight[p] = true;
		mf->under_wb[p]++;
		if (fail)
			lose(mf, p, mf->cache[p]);
		else
			mf->sent[p] = mf->cache[p];
	}
	return flight;
}

static void land(struct mfile *mf, bool *flight)
{
	for (uint64_t p = 0; flight && p < NR_PAGES; p++)
		mf->under_wb[p] -= flight[p];
	free(flight);
}

uint64_t dirty_in(const struct mfile *mf, uint64_t first, uint64_t end)
{
	uint64_t n = 0;

	for (uint64_t p = first; p < end && p < NR_PAGES; p++)
		n += mf->dirty[p];
	return n;
}

void note_cancelled(struct mfile *mf, const struct dc_file *file)
{
	if (mf->dead && !mf->cancelled && file->unlinked) {
		mf->cancelled = true;
		claim_clear(mf, 0, NR_PAGES - 1);
	}
}

void kernel_flush(struct mfile *mf, uint64_t first, uint64_t end)
{
	struct mop *m = dc_zalloc(sizeof(*m)), **at = &W->ops;

	m->mf = mf;
	m->started = true;
	m->flight = send_range(mf, first, end, false);
	while (*at)
		at = &(*at)->next;
	*at = m;
}

static version *snapshot(const version *from)
{
	version *v = dc_zalloc(NR_PAGES * sizeof(*v));

	return memcpy(v, from, NR_PAGES * sizeof(*v));
}

static void flushed(struct mfile *mf, const version *snap, uint64_t first, uint64_t end)
{
	for (uint64_t p = first; p < end; p++)
		if (snap[p] > mf->safe[p])
			mf->safe[p] = snap[p];
}

void cache_write(struct mfile *mf, uint64_t first, uint64_t pages, version ver)
{
	for (uint64_t p = first; p < first + pages; p++) {
		mf->cache[p] = ver;
		mf->dirty[p] = true;
		mf->unrecorded[p]++;
	}
}

uint64_t claim_set(struct mfile *mf, uint64_t first, uint64_t last)
{
	uint64_t n = 0;

	for (uint64_t p = first; p <= last; p++) {
		if (mf->claim[p])
			continue;
		mf->claim[p] = true;
		mf->claimed_at[p] = W->now;
		n++;
	}
	mf->nr_claims += n;
	return n;
}

void claim_clear(struct mfile *mf, uint64_t first, uint64_t last)
{
	for (uint64_t p = first; p <= last && p < NR_PAGES; p++) {
		mf->nr_claims -= mf->claim[p];
		mf->claim[p] = false;
	}
}

/* ---- the backend ---- */

static struct mfile *mf_of(const struct dc_file *file)
{
	unsigned int nr;

	memcpy(&nr, file->key, sizeof(nr));
	check(nr < W->nr_files, "a file with key %u, which nobody made", nr);
	return W->files[nr];
}

static void m_submit(struct dc_backend *be, struct dc_op *op)
{
	struct dc_turn *turn = op->done ? NULL : container_of_dc(op, struct dc_turn, op);
	struct dc_stable *stable = op->done ? container_of_dc(op, struct dc_stable, op) : NULL;
	struct dc_file *file = turn ? turn->file : stable->file;
	struct mop *m, **at = &W->ops;
	uint64_t before;

	(void)be;
	for (m = W->ops; m; m = m->next)
		check(m->op != op, "an operation in flight was submitted again");
	m = dc_zalloc(sizeof(*m));
	m->op = op;
	m->mf = mf_of(file);
	m->end = NR_PAGES;
	if (op->len > 0) {
		m->first = op->offset >> DC_PAGE_SHIFT;
		m->end = dc_min_u64(((op->offset + op->len - 1) >> DC_PAGE_SHIFT) + 1, NR_PAGES);
	}
	note_cancelled(m->mf, file);
	check(fcntl(op->fd, F_GETFD) >= 0 && W->by_fd[op->fd] == m->mf,
	      "file %u: operation on descriptor %d, which is not (or no longer) its own", m->mf->nr,
	      op->fd);
	if (stable) {
		check(op->fd == file->sync_fd && op->fd != file->fd && m->first < m->end,
		      "file %u: a stable sync by the wrong descriptor", m->mf->nr);
		before = m->mf->nr_claims;
		claim_clear(m->mf, m->first, m->end - 1);
		m->pages = before - m->mf->nr_claims;
		check(m->pages == stable->pages,
		      "file %u: a sync of %llu pages, %llu were claimed in its range", m->mf->nr,
		      (unsigned long long)stable->pages, (unsigned long long)m->pages);
		W->flights += m->pages;
	} else if (op->kind == DC_OP_WRITEBACK) {
		check(op->offset % DC_PAGE_SIZE == 0 && op->len % DC_PAGE_SIZE == 0 && op->len > 0,
		      "writeback of a crooked range");
		before = m->mf->nr_claims;
		claim_clear(m->mf, op->offset >> DC_PAGE_SHIFT,
			    ((op->offset + op->len) >> DC_PAGE_SHIFT) - 1);
		m->pages = before - m->mf->nr_claims;
		check(m->pages == turn->pages && m->pages > 0,
		      "file %u: a turn of %llu pages, %llu were claimed in its range", m->mf->nr,
		      (unsigned long long)turn->pages, (unsigned long long)m->pages);
		W->flights += m->pages;
	} else if (op->kind == DC_OP_DROP) {
		uint64_t first = op->offset >> DC_PAGE_SHIFT,
			 end = first + (op->len >> DC_PAGE_SHIFT);

		check(op->len > 0 && op->offset % (1UL << DC_WINDOW_SHIFT) == 0 &&
			      op->len % (1UL << DC_WINDOW_SHIFT) == 0,
		      "dropping a range that is not whole windows");
		for (uint64_t p = first; p < end && p < NR_PAGES; p++)
			check(!m->mf->claim[p], "file %u: dropping a window with dirty page %llu",
			      m->mf->nr, (unsigned long long)p);
	}
	while (*at)
		at = &(*at)->next;
	*at = m;
}

void op_start(struct mop *m)
{
	struct dc_op *op = m->op;

	if (m->started)
		return;
	m->started = true;
	m->refused = !W->automatic && op->kind != DC_OP_DROP && (W->dice >> 8 & 0xff) < 16;
	if (m->refused)
		return;
	if (op->kind == DC_OP_WRITEBACK) {
		m->flight = send_range(m->mf, m->first, m->end, op->strict);
	} else if (op->kind == DC_OP_SYNC) {
		m->seq = op->done ? 0 : m->mf->record_seq;
		m->flight = send_range(m->mf, m->first, m->end, true);
		m->snap = snapshot(m->mf->sent);
	}
}

void op_finish(struct mop *m)
{
	op_start(m);
	if (m->finished)
		return;
	m->finished = true;
	land(m->mf, m->flight);
	m->flight = NULL;
	if (!m->op)
		return; /* the kernel's own; taken away in wait() */
	if (m->refused)
		m->op->res = W->dice >> 21 & 1 ? -ENOSYS : -EPERM;
	else
		m->op->res = m->op->kind == DC_OP_DROP ? 0 : take_error(m->op->fd);
	if (m->snap && m->op->res == 0)
		flushed(m->mf, m->snap, m->first, m->end);
	m->op->next = W->done;
	W->done = m->op;
}

static struct dc_op *m_wait(struct dc_backend *be, int64_t timeout_ns)
{
	struct mop **at = &W->ops, *m;
	struct dc_op *done;

	(void)be;
	if (W->automatic)
		for (m = W->ops; m; m = m->next)
			op_finish(m);
	done = W->done;
	W->done = NULL;
	if (!done && timeout_ns > 0)
		W->now += (uint64_t)timeout_ns;
	while ((m = *at)) {
		if (!m->finished) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		W->flights -= m->pages;
		if (m->op && m->op->res < 0 && !m->refused)
			error_given(m->mf);
		if (m->snap && m->op->res == 0 && m->seq > m->mf->covered)
			m->mf->covered = m->seq;
		free(m->snap);
		free(m);
	}
	return done;
}

static void m_wake(struct dc_backend *be)
{
	(void)be;
}

static int m_sync(struct dc_backend *be, int fd)
{
	struct committer *co = W->running;
	struct mfile *mf = W->by_fd[fd];
	uint64_t seq = mf->record_seq;
	version *snap;
	bool *flight;
	int res;

	(void)be;
	check(fcntl(fd, F_GETFD) >= 0, "fdatasync of closed descriptor %d", fd);
	if (co) {
		check(mf == co->mf, "a COMMIT of file %u syncs file %u", co->mf->nr, mf->nr);
		note_cancelled(mf, mf->file);
		/* All that was claimed is the sync's now. */
		co->take = mf->nr_claims;
		W->flights += co->take;
		claim_clear(mf, 0, NR_PAGES - 1);
	}
	flight = send_range(mf, 0, NR_PAGES, true);
	snap = snapshot(mf->sent);
	if (co) {
		yield(co, CO_SYNCING);
		check(fcntl(fd, F_GETFD) >= 0 && W->by_fd[fd] == mf,
		      "file %u: its descriptor was closed during fdatasync", mf->nr);
	}
	land(mf, flight);
	res = take_error(fd);
	if (res == 0) {
		flushed(mf, snap, 0, NR_PAGES);
		if (seq > mf->covered)
			mf->covered = seq;
	} else {
		error_given(mf);
	}
	free(snap);
	return res;
}

static int m_writeback(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct mfile *mf = W->by_fd[fd];
	int res;

	(void)be;
	if (!W->automatic && (W->dice >> 16 & 0xf) == 0)
		return -ENOSYS;
	land(mf, send_range(mf, offset >> DC_PAGE_SHIFT, (offset + len) >> DC_PAGE_SHIFT, true));
	res = take_error(fd);
	if (res < 0)
		error_given(mf);
	return res;
}

static void m_drop(struct dc_backend *be, int fd, uint64_t offset, uint64_t len)
{
	struct mfile *mf = W->by_fd[fd];

	(void)be;
	check(offset % (1UL << DC_WINDOW_SHIFT) == 0 && len % (1UL << DC_WINDOW_SHIFT) == 0 && len,
	      "dropping a range that is not whole windows");
	for (uint64_t p = offset >> DC_PAGE_SHIFT;
	     p < (offset + len) >> DC_PAGE_SHIFT && p < NR_PAGES; p++)
		check(mf->dead || !mf->claim[p], "file %u: dropping a window with dirty page %llu",
		      mf->nr, (unsigned long long)p);
}

static int m_cachestat(struct dc_backend *be, int fd, uint64_t offset, uint64_t len,
		       struct dc_cachestat *st)
{
	(void)be;
	/* The world's writes leave the page that a file ended in alone. */
	if (W->inflating && len == DC_PAGE_SIZE) {
		*st = (struct dc_cachestat){ 0 };
		return 0;
	}
	st->dirty = W->inflating ? W->inflate_to :
				   dirty_in(W->by_fd[fd], offset >> DC_PAGE_SHIFT,
					    (offset + len) >> DC_PAGE_SHIFT);
	st->writeback = 0;
	for (uint64_t p = offset >> DC_PAGE_SHIFT;
	     p < (offset + len) >> DC_PAGE_SHIFT && p < NR_PAGES; p++)
		st->writeback += W->by_fd[fd]->under_wb[p] != 0;
	/* What is clean was dropped; but folios that inflate a write are there. */
	st->cached = W->inflating ? len >> DC_PAGE_SHIFT : st->dirty + st->writeback;
	return 0;
}

static int m_error(struct dc_backend *be, int fd)
{
	int err = take_error(fd);

	(void)be;
	if (err < 0)
		error_given(W->by_fd[fd]);
	return err;
}

static int m_reopen(struct dc_backend *be, int fd)
{
	char path[32];
	int fresh;

	(void)be;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	fresh = open(path, O_RDONLY | O_CLOEXEC);
	opened(W->by_fd[fd], fresh);
	return fresh;
}

static void m_free(struct dc_backend *be)
{
	(void)be;
}

static const struct dc_backend_ops m_ops = {
	.name = "model",
	.submit = m_submit,
	.wait = m_wait,
	.wake = m_wake,
	.sync = m_sync,
	.writeback = m_writeback,
	.drop = m_drop,
	.cachestat = m_cachestat,
	.error = m_error,
	.reopen = m_reopen,
	.free = m_free,
};

static struct dc_backend *m_make(int *err)
{
	*err = 0;
	W->be.ops = &m_ops;
	return &W->be;
}

/* ---- files ---- */

struct mfile *mfile_new(void)
{
	struct mfile *mf = dc_zalloc(sizeof(*mf));

	mf->nr = W->nr_files++;
	snprintf(mf->path, sizeof(mf->path), "%s/%u", model_dir, mf->nr);
	W->files = dc_realloc(W->files, W->nr_files * sizeof(*W->files));
	W->files[mf->nr] = mf;
	return mf;
}

void mfile_open(struct mfile *mf)
{
	if (!mf->file)
		mf->file = dc_file_get(W->exp, &mf->nr, sizeof(mf->nr));
	while (!dc_write_begin(mf->file)) {
		int fd = open(mf->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

		opened(mf, fd);
		dc_file_set_fd(mf->file, fd);
	}
}

/* ---- the whole ---- */

static uint64_t host_now(void *host)
{
	(void)host;
	return ++W->now;
}

static void host_log(void *host, enum dc_log_level level, const char *text)
{
	(void)host;
	if (W->verbose)
		printf("    log %d: %s\n", (int)level, text);
}

static void host_resume(void *host, void *connection)
{
	(void)host;
	(void)connection;
}

static const struct dc_host_ops host_ops = { host_now, host_log, host_resume };

void world_new(uint64_t seed, bool strict, bool verbose)
{
	struct dc_engine_options eo = { .max_open_files = 5 };

	/* Paced in every other world, and short of the server's budget in every third. The same seed's
	 * world is the same however short its sequence has become. */
	if (seed % 2)
		eo.law = dc_pace_linear;
	if (seed % 3 == 0)
		eo.dirty_bytes = 12 << 20;
	int err;

	W = dc_zalloc(sizeof(*W));
	W->now = 1000 * DC_NS_PER_S;
	W->strict = strict;
	W->verbose = verbose;
	for (int i = 0; i < NR_COMMITTERS; i++)
		committers[i].state = CO_FREE;
	W->eng = dc_engine_new(&host_ops, NULL, &eo);
	W->dev = dc_device_get(W->eng, 1, m_make, &err);
	dc_params_defaults(&W->params);
	W->params.dirty_bytes = 16 << 20;
	W->params.dirty_background_bytes = 4 << 20;
	W->exp = dc_export_new(W->dev, 1, "/model", &W->params);
	for (int i = 0; i < NR_SLOTS; i++)
		W->slot[i] = mfile_new();
}

void world_free(void)
{
	dc_engine_free(W->eng);
	for (unsigned int i = 0; i < W->nr_files; i++) {
		unlink(W->files[i]->path);
		free(W->files[i]);
	}
	free(W->files);
	free(W);
	W = NULL;
}
