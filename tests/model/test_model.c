/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The model test: random sequences of what clients, the flusher, the device and time may do,
 * against the reference of model.h, everything checked after every operation.
 *
 *     test_model [--seed N] [--count N] [--length N] [--lenient] [--verbose]
 *
 * Runs the sequences of seeds N, N+1, ... in a child. Should one fail (a check, an assertion of the
 * engine, a hang), the sequence is shortened as far as it still fails, printed, and run once more
 * aloud. Each operation takes its arguments modulo what there is, so that any part of a sequence is
 * a sequence.
 *
 * An error may take a page whose write is under way and not recorded yet: its client must be told
 * all the same. With --lenient it may not.
 */
#include "model.h"

#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind {
	OP_WRITE,  /* a whole write, if it is admitted */
	OP_BEGIN,  /* admission, and the bytes go into the cache; not recorded yet */
	OP_DONE,   /* ... now they are; or it was short, or failed */
	OP_COMMIT, /* a committer begins */
	OP_RESUME, /* one that is blocked goes on */
	OP_POLL,   /* a round of the flusher */
	OP_START,  /* the device begins an operation */
	OP_FINISH, /* and ends one */
	OP_KERNEL, /* the kernel's flusher begins to write something by itself */
	OP_TIME,   /* passes */
	OP_TRUNC,
	OP_PUNCH,
	OP_UNLINK,
	OP_FORGET, /* the handle is evicted */
	OP_LIMIT,  /* changes */
	OP_BULK,   /* many large writes to one file: a COMMIT of it goes through the flusher */
	OP_QUIET,  /* nothing happens for so long that the flusher syncs by itself */
	OP_SPOIL,  /* the device loses what it had not made durable */
	OP_ERROR,  /* the sub-FSAL saw an error */
	OP_EXTEND, /* a change of size zeroes a part of a page */
	OP_SHED,   /* the process has no descriptor left */
	OP_LOCAL,  /* a local process's fsync is told of the file's error */
	OP_CLEAR,  /* everything that can end, ends */
	NR_OPS
};

static const char *const op_names[NR_OPS] = { "write", "begin", "done",	  "commit", "resume",
					      "poll",  "start", "finish", "kernel", "time",
					      "trunc", "punch", "unlink", "forget", "limit",
					      "bulk",  "quiet", "spoil",  "error",  "extend",
					      "shed",  "local", "clear" };
static const unsigned int weight[NR_OPS] = { 24, 8, 12, 10, 14, 16, 10, 14, 4, 6, 3, 2,
					     2,	 4, 3,	3,  2,	2,  1,	3,  1, 2, 1 };

struct step {
	enum kind kind;
	uint32_t a, b, c, d;
};

#define MAX_STEPS 400

static struct {
	bool strict, verbose;
} opt = { .strict = true };

#define say(...)                                                                                   \
	do {                                                                                       \
		if (W->verbose)                                                                    \
			printf(__VA_ARGS__);                                                       \
	} while (0)

/* ---- making sequences ---- */

static uint64_t rnd(uint64_t *s)
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 0x2545f4914f6cdd1dULL >> 16;
}

static unsigned int make_sequence(uint64_t seed, unsigned int length, struct step *step)
{
	uint64_t s = (seed + 1) * 0x9e3779b97f4a7c15ULL;
	unsigned int total = 0, n;

	for (int k = 0; k < NR_OPS; k++)
		total += weight[k];
	for (int i = 0; i < 8; i++)
		rnd(&s);
	n = length / 2 + (unsigned int)(rnd(&s) % length);
	if (n > MAX_STEPS)
		n = MAX_STEPS;
	for (unsigned int i = 0; i < n; i++) {
		unsigned int x = (unsigned int)(rnd(&s) % total);
		int k = 0;

		while (x >= weight[k])
			x -= weight[k++];
		step[i] = (struct step){ (enum kind)k, (uint32_t)rnd(&s), (uint32_t)rnd(&s),
					 (uint32_t)rnd(&s), (uint32_t)rnd(&s) };
	}
	return n;
}

/* ---- writes ---- */

static void waiter_ran(struct dc_waiter *w, int status)
{
	struct mwrite *mw = container_of_dc(w, struct mwrite, w);

	check(mw->state == W_PARKED, "a waiter ran twice");
	mw->state = status == 0 ? W_ADMITTED : W_NONE;
}

static struct mwrite *free_write(void)
{
	for (int i = 0; i < NR_WRITES; i++)
		if (W->write[i].state == W_NONE)
			return &W->write[i];
	return NULL;
}

static struct mwrite *some_write(uint32_t from, enum write_state a, enum write_state b)
{
	for (uint32_t i = 0; i < NR_WRITES; i++) {
		struct mwrite *w = &W->write[(from + i) % NR_WRITES];

		if (w->state == a || w->state == b)
			return w;
	}
	return NULL;
}

/* Admission. */
static struct mwrite *write_ask(const struct step *st)
{
	struct mwrite *w = free_write();
	uint64_t max = st->c % 8 == 0 ? 1024 : 256; /* now and then enough for a large COMMIT */

	if (!w)
		return NULL;
	memset(w, 0, sizeof(*w));
	w->mf = W->slot[st->a % NR_SLOTS];
	w->client = st->a / NR_SLOTS % NR_CLIENTS;
	w->pages = 1 + st->d % (st->c / 8 % 3 ? max : 4);
	/* Often near where others write. */
	w->first = st->c / 64 % 2 ? st->b % (NR_PAGES - w->pages) : st->b % 1024;
	w->reserved = w->pages;
	w->stable = st->c / 8192 % 4 == 0;
	if (st->c / 128 % 8 == 0 && w->pages < 64) { /* a folio may inflate it */
		w->reserved =
			dc_write_windows(w->first << DC_PAGE_SHIFT, w->pages << DC_PAGE_SHIFT);
		w->inflate = st->c / 1024 % (DC_WINDOW_PAGES + 1);
	}
	if (dc_admit(W->exp, w->reserved)) {
		w->state = W_ADMITTED;
	} else {
		enum dc_parking answer;

		w->w.pages = w->reserved;
		w->w.bytes = w->pages << DC_PAGE_SHIFT;
		w->w.client = w->client;
		w->w.connection = &W->write[w->client];
		w->w.run = waiter_ran;
		w->state = W_PARKED;
		answer = dc_park(W->exp, &w->w);
		if (answer == DC_ADMITTED)
			w->state = W_ADMITTED;
		else if (answer == DC_REFUSED)
			w->state = W_NONE;
	}
	say("file %u, client %u: pages [%llu, %llu) %s\n", w->mf->nr, w->client,
	    (unsigned long long)w->first, (unsigned long long)(w->first + w->pages),
	    w->state == W_ADMITTED ? "admitted" :
	    w->state == W_PARKED   ? "parked" :
				     "refused");
	return w;
}

/* The bytes go into the page cache: all of them, a part, or none. */
static void write_cache(struct mwrite *w, uint32_t how)
{
	if (w->mf->dead) {
		dc_unreserve(W->exp, w->reserved);
		w->state = W_NONE;
		return;
	}
	mfile_open(w->mf);
	if (w->stable) {
		/* Without that descriptor the engine would block here. */
		w->stable = dc_stable_begin(w->mf->file);
	}
	w->errors = dc_file_errors(w->mf->file);
	w->ver = ++W->ver;
	w->offset = w->first << DC_PAGE_SHIFT;
	w->len = w->pages << DC_PAGE_SHIFT;
	if (how % 8 == 0)
		w->len = 0;
	else if (how % 8 == 1)
		w->len = 1 + how / 8 % w->len;
	else if (how % 8 == 2) { /* not aligned */
		w->offset++;
		w->len -= 2;
	}
	w->kept = w->len ? dc_write_pages(w->offset, w->len) : 0;
	cache_write(w->mf, w->first, w->kept, w->ver);
	w->state = W_WRITTEN;
}

static void record(struct mfile *mf, unsigned int client, uint64_t first, uint64_t pages,
		   version ver, bool stable)
{
	mf->record_seq++;
	/* What becomes of a stable write is in its own answer. */
	if (stable)
		return;
	mf->need_seq = mf->record_seq;
	mf->client_seq[client] = mf->record_seq;
	for (uint64_t p = first; p < first + pages; p++) {
		if (ver > mf->recorded[p])
			mf->recorded[p] = ver;
		if (ver > mf->of[client][p]) {
			mf->of[client][p] = ver;
			mf->of_seq[client][p] = (uint32_t)mf->record_seq;
		}
		/* Lost before it was recorded: so who was told of errors then was not this client. */
		if (W->strict && mf->lost[p] >= ver && mf->must_seq[client] == 0)
			mf->must_seq[client] = mf->record_seq;
	}
}

/* Claims that follow from cachestat's answer, as src/inflate.c has it. */
static uint64_t inflate(struct mfile *mf, uint64_t first, uint64_t last, uint64_t dirty,
			uint64_t max)
{
	uint64_t n = 0;

	for (uint64_t w = first / DC_WINDOW_PAGES; w <= last / DC_WINDOW_PAGES; w++) {
		uint64_t have = 0;

		for (uint64_t p = w * DC_WINDOW_PAGES; p < (w + 1) * DC_WINDOW_PAGES; p++)
			have += mf->claim[p];
		for (uint64_t p = w * DC_WINDOW_PAGES;
		     p < (w + 1) * DC_WINDOW_PAGES && have < dirty && n < max; p++) {
			if (mf->claim[p])
				continue;
			n += claim_set(mf, p, p);
			mf->dirty[p] = true; /* its folio is */
			have++;
		}
	}
	return n;
}

static void stable_answered(struct dc_stable *s, int res)
{
	struct mwrite *w = container_of_dc(s, struct mwrite, s);

	check(w->state == W_SYNCING, "a stable write was answered twice");
	say("  stable write of version %u to file %u by client %u answers %d\n", w->ver, w->mf->nr,
	    w->client, res);
	check_stable(w, res);
	w->state = W_NONE;
}

static void write_done(struct mwrite *w)
{
	struct mfile *mf = w->mf;
	bool stable = w->stable && w->kept > 0;
	uint64_t n;

	note_cancelled(mf, mf->file);
	for (uint64_t p = w->first; p < w->first + w->kept; p++)
		mf->unrecorded[p]--;
	say("file %u, client %u: version %u, recorded %llu of %llu pages\n", mf->nr, w->client,
	    w->ver, (unsigned long long)w->kept, (unsigned long long)w->pages);
	W->inflate_to = w->inflate;
	if (w->kept) {
		n = claim_set(mf, w->first, w->first + w->kept - 1);
		if (w->reserved > w->kept)
			inflate(mf, w->first, w->first + w->kept - 1, W->inflate_to,
				w->reserved - n);
		record(mf, w->client, w->first, w->kept, w->ver, stable);
		if (!stable)
			mf->again[w->client] += dc_file_errors(mf->file) != w->errors;
	}
	w->state = stable ? W_SYNCING : W_NONE;
	W->inflating = true;
	dc_write_done(mf->file, w->offset, w->len, w->reserved, DC_CLIENT(w->client / 2, w->client),
		      w->errors, stable);
	W->inflating = false;
	if (!stable)
		return;
	w->s.offset = w->offset;
	w->s.len = w->len;
	w->s.client = DC_CLIENT(w->client / 2, w->client);
	w->s.errors = w->errors;
	w->s.begun = true;
	w->s.done = stable_answered;
	dc_stable_sync(mf->file, &w->s);
}

/* ---- committers ---- */

static void reap_committer(struct committer *co)
{
	if (co->state != CO_DONE)
		return;
	W->flights -= co->take;
	say("  COMMIT of file %u by client %u answers %d\n", co->mf->nr, co->client, co->res);
	check_commit(co);
	free(co->at_call);
	free(co->own);
	co->at_call = co->own = NULL;
	co->state = CO_FREE;
}

static struct committer *commit_begin(struct mfile *mf, unsigned int client, uint64_t offset,
				      uint64_t len)
{
	struct committer *co = NULL;

	for (int i = 0; i < NR_COMMITTERS && !co; i++)
		if (committers[i].state == CO_FREE)
			co = &committers[i];
	if (!co || mf->dead)
		return NULL;
	co->mf = mf;
	co->client = client;
	co->take = 0;
	co->offset = offset;
	co->len = len;
	co->seq_at_call = mf->record_seq;
	co->at_call = dc_zalloc(sizeof(mf->recorded));
	memcpy(co->at_call, mf->recorded, sizeof(mf->recorded));
	co->own = dc_zalloc(sizeof(mf->of[client]));
	memcpy(co->own, mf->of[client], sizeof(mf->of[client]));
	/* As if the flusher had a thread: a large COMMIT waits for it. */
	W->dev->threaded = true;
	co_resume(co);
	W->dev->threaded = false;
	reap_committer(co);
	return co;
}

static void resume(struct committer *co)
{
	if (co->state != CO_WAITING && co->state != CO_SYNCING)
		return;
	co_resume(co);
	reap_committer(co);
}

/* ---- the other operations ---- */

static struct mop *some_op(uint32_t from, bool unstarted)
{
	unsigned int n = 0;

	for (struct mop *m = W->ops; m; m = m->next)
		n += unstarted ? !m->started : !m->finished;
	if (n == 0)
		return NULL;
	from %= n;
	for (struct mop *m = W->ops; m; m = m->next)
		if ((unstarted ? !m->started : !m->finished) && from-- == 0)
			return m;
	return NULL;
}

static void shrink_file(struct mfile *mf, uint64_t first, uint64_t end)
{
	for (uint64_t p = first; p < end; p++) {
		mf->cache[p] = 0;
		mf->dirty[p] = false;
		mf->gone[p] = W->ver;
	}
}

static void do_trunc(const struct step *st)
{
	struct mfile *mf = W->slot[st->a % NR_SLOTS];
	uint64_t end = st->b % 4 ? st->c % NR_PAGES : 0, seq;
	bool partial = st->b / 4 % 2;
	struct mwrite *w = some_write(st->d, W_WRITTEN, W_WRITTEN);
	bool race = st->b / 8 % 4 == 0 && w && w->mf == mf;
	uint64_t offset = (end << DC_PAGE_SHIFT) + partial;

	if (!mf->file)
		mf->file = dc_file_get(W->exp, &mf->nr, sizeof(mf->nr));
	seq = dc_file_seq(mf->file);
	if (race)
		write_done(w);
	if (st->kind == OP_TRUNC) {
		uint64_t gone = end + partial;

		say("file %u to %llu pages%s%s\n", mf->nr, (unsigned long long)end,
		    partial ? " and a byte" : "", race ? ", a write meanwhile" : "");
		shrink_file(mf, gone, NR_PAGES);
		if (dc_file_seq(mf->file) == seq && gone < NR_PAGES)
			claim_clear(mf, gone, NR_PAGES - 1);
		dc_file_truncated(mf->file, offset, seq);
	} else {
		uint64_t len = (1 + st->d % 600) << DC_PAGE_SHIFT;
		uint64_t first = end + partial, stop = (offset + len) >> DC_PAGE_SHIFT;

		if (stop > NR_PAGES)
			stop = NR_PAGES;
		say("file %u: hole [%llu, %llu)%s\n", mf->nr, (unsigned long long)first,
		    (unsigned long long)stop, race ? ", a write meanwhile" : "");
		if (first < stop) {
			shrink_file(mf, first, stop);
			if (dc_file_seq(mf->file) == seq)
				claim_clear(mf, first, stop - 1);
		}
		dc_file_punched(mf->file, offset, len, seq);
	}
}

/* The page is dirty afterwards, though nobody wrote; and is claimed, or written back at once. */
static void do_extend(struct mfile *mf, uint64_t page)
{
	uint64_t claimed;

	if (mf->claim[page])
		return;
	say("file %u, in page %llu\n", mf->nr, (unsigned long long)page);
	mfile_open(mf);
	mf->dirty[page] = true;
	dc_file_edge(mf->file, (page << DC_PAGE_SHIFT) + 1);
	claimed = mf->file->map.nr_pages - mf->nr_claims;
	if (claimed > 0) /* itself, and what its folio holds */
		claimed -= claim_set(mf, page, page);
	inflate(mf, page, page, DC_WINDOW_PAGES, claimed);
	check(mf->nr_claims == mf->file->map.nr_pages,
	      "file %u: an edge claimed pages that are claimed", mf->nr);
	dc_write_unpin(mf->file);
}

static void do_unlink(const struct step *st)
{
	unsigned int i = st->a % NR_SLOTS;
	struct mfile *mf = W->slot[i];

	say("file %u%s\n", mf->nr, st->b % 2 ? "" : ", behind the server's back");
	unlink(mf->path);
	mf->dead = true;
	if (st->b % 2) {
		if (!mf->file)
			mf->file = dc_file_get(W->exp, &mf->nr, sizeof(mf->nr));
		dc_file_check_links(mf->file);
	}
	W->slot[i] = mfile_new();
}

/* A handle that nothing pins is evicted. */
static void do_forget(struct mfile *mf)
{
	if (!mf->file)
		return;
	for (int i = 0; i < NR_WRITES; i++)
		if ((W->write[i].state == W_WRITTEN || W->write[i].state == W_SYNCING) &&
		    W->write[i].mf == mf)
			return;
	for (int i = 0; i < NR_COMMITTERS; i++)
		if (committers[i].state != CO_FREE && committers[i].mf == mf)
			return;
	say("file %u\n", mf->nr);
	dc_file_put(mf->file);
	mf->file = NULL;
}

static void do_time(const struct step *st)
{
	static const uint64_t ns[] = { 1,	   1000000,	300000000,  1000000000,
				       6000000000, 11000000000, 25000000000 };

	W->now += ns[st->a % 7];
	say("%llu ms\n", (unsigned long long)ns[st->a % 7] / 1000000);
}

static void do_limit(const struct step *st)
{
	W->params.dirty_bytes = (4ULL + st->a % 28) << 20;
	W->params.dirty_background_bytes = st->b % 2 ? 0 : W->params.dirty_bytes - (1 << 20);
	W->params.drop_behind = st->c % 4 != 0;
	W->params.writeback_window_ms = st->d % 2 ? 100 : 10000;
	say("%llu MiB, background %llu MiB\n", (unsigned long long)W->params.dirty_bytes >> 20,
	    (unsigned long long)dc_params_background(&W->params) >> 20);
	dc_export_set_params(W->exp, &W->params);
}

/* What can end ends, without errors and with hardly any time passing. */
static void settle(uint32_t how)
{
	W->automatic = true;
	for (int round = 0; round < 200; round++) {
		bool busy = W->ops || W->done;

		W->now += DC_NS_PER_MS; /* credit comes with time */
		dc_device_poll(W->dev, 0);
		for (int i = 0; i < NR_COMMITTERS; i++) {
			busy |= committers[i].state != CO_FREE;
			resume(&committers[i]);
		}
		for (int i = 0; i < NR_WRITES; i++) {
			struct mwrite *w = &W->write[i];

			busy |= w->state != W_NONE;
			if (w->state == W_ADMITTED)
				write_cache(w, how);
			else if (w->state == W_WRITTEN)
				write_done(w);
		}
		check_step();
		if (!busy && !W->ops && !W->done) {
			W->automatic = false;
			return;
		}
	}
	for (int i = 0; i < NR_COMMITTERS; i++)
		check(committers[i].state == CO_FREE, "a COMMIT of file %u never ends",
		      committers[i].mf->nr);
	for (int i = 0; i < NR_WRITES; i++)
		check(W->write[i].state == W_NONE, "a parked write of file %u never runs",
		      W->write[i].mf->nr);
	model_fail("the device never comes to rest");
}

static void run_step(const struct step *st)
{
	struct mwrite *w;
	struct mop *m;

	W->dice = (uint64_t)st->d * 0x9e3779b97f4a7c15ULL >> 16;
	switch (st->kind) {
	case OP_WRITE:
		w = write_ask(st);
		if (w && w->state == W_ADMITTED)
			write_cache(w, 7);
		if (w && w->state == W_WRITTEN)
			write_done(w);
		break;
	case OP_BEGIN:
		w = write_ask(st);
		if (w && w->state == W_ADMITTED)
			write_cache(w, st->b / 8);
		break;
	case OP_DONE:
		w = some_write(st->a, W_ADMITTED, W_WRITTEN);
		if (w && w->state == W_ADMITTED)
			write_cache(w, st->b);
		else if (w)
			write_done(w);
		break;
	case OP_COMMIT:
		say("file %u, client %u\n", W->slot[st->a % NR_SLOTS]->nr,
		    st->a / NR_SLOTS % NR_CLIENTS);
		commit_begin(W->slot[st->a % NR_SLOTS], st->a / NR_SLOTS % NR_CLIENTS,
			     st->b % 2 ? (uint64_t)(st->c % NR_PAGES) << DC_PAGE_SHIFT : 0,
			     st->b % 2 ? 1 + ((uint64_t)(st->d % 1024) << DC_PAGE_SHIFT) : 0);
		break;
	case OP_RESUME:
		resume(&committers[st->a % NR_COMMITTERS]);
		break;
	case OP_POLL:
		dc_device_poll(W->dev, 0);
		break;
	case OP_START:
		m = some_op(st->a, true);
		if (m) {
			say("file %u: kind %d\n", m->mf->nr, (int)m->op->kind);
			op_start(m);
		}
		break;
	case OP_FINISH:
		m = some_op(st->a, false);
		if (m) {
			op_finish(m);
			if (m->op)
				say("file %u: kind %d, %d\n", m->mf->nr, (int)m->op->kind,
				    m->op->res);
		}
		break;
	case OP_KERNEL: {
		struct mfile *mf = W->slot[st->a % NR_SLOTS];
		uint64_t first = st->b % 4 ? st->b / 4 % NR_PAGES : 0;

		say("file %u from page %llu\n", mf->nr, (unsigned long long)first);
		kernel_flush(mf, first, first + 1 + st->c % 2048);
		break;
	}
	case OP_TIME:
		do_time(st);
		break;
	case OP_TRUNC:
	case OP_PUNCH:
		do_trunc(st);
		break;
	case OP_UNLINK:
		do_unlink(st);
		break;
	case OP_FORGET:
		do_forget(W->files[st->a % W->nr_files]);
		break;
	case OP_LIMIT:
		do_limit(st);
		break;
	case OP_BULK:
		for (uint32_t i = 0; i < 4 + st->b % 10; i++) {
			struct step one = { OP_WRITE, st->a, st->b + 256 * i, 1 + 16 + 64, 255 };

			w = write_ask(&one);
			if (w && w->state == W_ADMITTED) {
				write_cache(w, 7);
				write_done(w);
			}
		}
		break;
	case OP_QUIET:
		for (int i = 0; i < 2; i++) {
			W->automatic = true;
			for (int k = 0; k < 4; k++)
				dc_device_poll(W->dev, 0);
			W->automatic = false;
			W->now +=
				W->params.dirty_expire_centisecs * 10 * DC_NS_PER_MS + DC_NS_PER_S;
			dc_device_poll(W->dev, 0);
		}
		break;
	case OP_SPOIL: {
		struct mfile *mf = W->slot[st->a % NR_SLOTS];

		say("file %u", mf->nr);
		device_forgets(mf);
		break;
	}
	case OP_ERROR: {
		struct mfile *mf = W->slot[st->a % NR_SLOTS];

		if (!mf->file)
			break;
		error_given(mf);
		dc_file_error(mf->file, -EIO);
		break;
	}
	case OP_EXTEND:
		do_extend(W->slot[st->a % NR_SLOTS], st->b % NR_PAGES);
		break;
	case OP_SHED:
		dc_fd_shed(W->eng);
		break;
	case OP_LOCAL:
		W->slot[st->a % NR_SLOTS]->err_seen = true;
		break;
	case OP_CLEAR:
		settle(st->a);
		break;
	case NR_OPS:
		break;
	}
	check_step();
}

/* ---- the end of every sequence: all that was promised must have been kept ---- */

static void finish_sequence(void)
{
	W->dice = ~0ULL;
	settle(7);
	for (int i = 0; i < NR_SLOTS; i++) {
		for (unsigned int c = 0; c < NR_CLIENTS; c++) {
			struct mfile *mf = W->slot[i];
			uint64_t told;

			commit_begin(mf, c, 0, 0);
			settle(7);
			told = mf->told[c];
			commit_begin(mf, c, 0, 0);
			settle(7);
			check(mf->told[c] == told, "file %u: client %u was told of an error again",
			      mf->nr, c);
		}
	}
	W->automatic = true;
	for (unsigned int i = 0; i < W->nr_files; i++)
		do_forget(W->files[i]);
	for (int round = 0; round < 4; round++) {
		W->now += W->params.dirty_expire_centisecs * 10 * DC_NS_PER_MS + DC_NS_PER_S;
		for (int i = 0; i < 10; i++)
			dc_device_poll(W->dev, 0);
		check_step();
	}
	check(dc_dirty_pages(W->exp) == 0, "claims that never expire");
	check_end();
	check(dc_export_drain(W->exp, DC_NS_PER_S) == 0, "cannot be drained");
	check(dc_export_free(W->exp, DC_NS_PER_S), "cannot be freed");
	world_free();
}

static volatile uint64_t *running; /* the seed that is being run; shared with the child */

static void run_sequence(const struct step *step, unsigned int n, bool verbose)
{
	world_new(*running, opt.strict, verbose);
	for (unsigned int i = 0; i < n; i++) {
		say("%3u %-6s ", i, op_names[step[i].kind]);
		run_step(&step[i]);
		say("\n");
	}
	finish_sequence();
}

/* ---- children, failures, shrinking ---- */

/* Did it fail? The sequence is run in a child of its own. */
static bool fails(const struct step *step, unsigned int n, bool aloud)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (!aloud) {
			int null = open("/dev/null", O_WRONLY);

			dup2(null, STDERR_FILENO);
		}
		alarm(20);
		pool_start();
		run_sequence(step, n, aloud);
		fflush(NULL);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static unsigned int shrink(struct step *step, unsigned int n)
{
	for (unsigned int chunk = n / 2; chunk > 0; chunk = chunk > 1 ? chunk / 2 : 0) {
		for (unsigned int at = 0; at + chunk <= n;) {
			struct step less[MAX_STEPS];

			memcpy(less, step, at * sizeof(*step));
			memcpy(less + at, step + at + chunk, (n - at - chunk) * sizeof(*step));
			if (fails(less, n - chunk, false)) {
				n -= chunk;
				memcpy(step, less, n * sizeof(*step));
			} else {
				at += chunk;
			}
		}
	}
	return n;
}

static void remove_files(void)
{
	char cmd[128];

	/* Left by children that died; nothing but numbered files is in it. */
	for (unsigned int i = 0; i < 1000; i++) {
		snprintf(cmd, sizeof(cmd), "%s/%u", model_dir, i);
		unlink(cmd);
	}
	rmdir(model_dir);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "count", required_argument, NULL, 'c' },
		{ "length", required_argument, NULL, 'l' },
		{ "lenient", no_argument, NULL, 'x' },
		{ "verbose", no_argument, NULL, 'v' },
		{ NULL, 0, NULL, 0 },
	};
	uint64_t seed = 1, count = 1000;
	unsigned int length = 100, n;
	struct step step[MAX_STEPS];
	const char *tmp = getenv("TMPDIR");
	int o, status;
	pid_t pid;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 'c':
			count = strtoull(optarg, NULL, 0);
			break;
		case 'l':
			length = (unsigned int)strtoul(optarg, NULL, 0);
			break;
		case 'x':
			opt.strict = false;
			break;
		case 'v':
			opt.verbose = true;
			break;
		default:
			return 2;
		}
	}
	snprintf(model_dir, sizeof(model_dir), "%.40s/dcmodel.XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(model_dir)) {
		perror(model_dir);
		return 1;
	}
	running = mmap(NULL, sizeof(*running), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	*running = seed;
	printf("seeds %llu to %llu\n", (unsigned long long)seed,
	       (unsigned long long)(seed + count - 1));
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		pool_start();
		for (; *running < seed + count; ++*running) {
			alarm(20); /* for one sequence: a few milliseconds otherwise */
			n = make_sequence(*running, length, step);
			run_sequence(step, n, opt.verbose);
		}
		alarm(0);
		pool_stop();
		exit(0);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		remove_files();
		return 0;
	}
	printf("seed %llu fails: ", (unsigned long long)*running);
	if (WIFSIGNALED(status))
		printf("signal %d\n", WTERMSIG(status));
	else
		printf("exit %d\n", WEXITSTATUS(status));
	n = make_sequence(*running, length, step);
	printf("%u operations; shrinking\n", n);
	fflush(NULL);
	n = shrink(step, n);
	printf("%u operations are left:\n", n);
	for (unsigned int i = 0; i < n; i++)
		printf("  { OP_%s, 0x%x, 0x%x, 0x%x, 0x%x },\n", op_names[step[i].kind], step[i].a,
		       step[i].b, step[i].c, step[i].d);
	if (!fails(step, n, true))
		printf("(alone it does not fail: it depends on the sequences before it)\n");
	printf("replay: test_model --seed %llu --count 1 --length %u%s --verbose\n",
	       (unsigned long long)*running, length, opt.strict ? "" : " --lenient");
	remove_files();
	return 1;
}
