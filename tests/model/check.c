/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* What must hold in the world of the model test. See model.h. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void model_fail(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "MODEL: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	fflush(stderr);
	_exit(1);
}

/* ---- between two operations ---- */

static void check_file(const struct dc_file *file, struct mfile *mf, bool thorough)
{
	uint64_t n = 0, page = 0, oldest = UINT64_MAX;

	note_cancelled(mf, file);
	check(file->map.nr_pages == mf->nr_claims, "file %u: %llu pages claimed, not %llu", mf->nr,
	      (unsigned long long)file->map.nr_pages, (unsigned long long)mf->nr_claims);
	check((file->heap_index != DC_NOT_IN_HEAP) == (file->map.nr_pages > 0),
	      "file %u: dirty and not among the dirty files, or the reverse", mf->nr);
	check(file->map.nr_pages == 0 || file->holds_dirty_ref, "file %u: dirty and not held",
	      mf->nr);
	check(file->synced_seq <= file->write_seq, "file %u: synced beyond its writes", mf->nr);
	check(file->holds_sync_ref || file->unlinked || mf->covered >= mf->need_seq,
	      "file %u: unsynced and not held", mf->nr);
	check(!(file->holds_sync_ref || file->map.nr_pages) || file->fd >= 0 || file->unlinked,
	      "file %u: unsynced, and its descriptor was closed", mf->nr);
	if (!thorough)
		return;
	while ((page = dc_map_next(&file->map, page)) != DC_NO_PAGE) {
		check(page < NR_PAGES && mf->claim[page],
		      "file %u: page %llu is claimed for nothing", mf->nr,
		      (unsigned long long)page);
		if (mf->claimed_at[page] < oldest)
			oldest = mf->claimed_at[page];
		n++;
		page++;
	}
	check(n == mf->nr_claims, "file %u: claims differ", mf->nr);
	/* R4: a claim is never older than its file says, or it would not expire in time. */
	check(n == 0 || file->dirtied_when <= oldest + 1, "file %u: has a claim older than it says",
	      mf->nr);
}

/* R3: a page that is dirty because of a write that was answered is claimed, or is in a turn that
 * has yet to begin. */
static void check_accounted(struct mfile *mf)
{
	static bool covered[NR_PAGES];

	memset(covered, 0, sizeof(covered));
	for (struct mop *m = W->ops; m; m = m->next) {
		uint64_t p;

		if (m->mf != mf || !m->op || (m->op->kind != DC_OP_WRITEBACK && !m->op->done) ||
		    (m->started && !m->refused))
			continue;
		for (p = m->first; p < m->end; p++)
			covered[p] = true;
	}
	for (uint64_t p = 0; p < NR_PAGES; p++)
		check(!mf->dirty[p] || mf->claim[p] || mf->unrecorded[p] || covered[p],
		      "file %u: page %llu is dirty and nobody counts it", mf->nr,
		      (unsigned long long)p);
}

void check_step(void)
{
	static unsigned int turn;
	uint64_t used = atomic_load(&W->exp->used) - atomic_load(&W->exp->withheld), stash = 0,
		 claims = 0, in_maps = 0, reserved = 0;
	uint64_t limit = atomic_load(&W->exp->limit), parked = 0, unsynced = 0, files = 0;
	bool thorough = turn++ % 8 == 0;

	for (unsigned int i = 0; i < W->nr_files; i++)
		W->files[i]->known = false;
	for (int s = 0; s < DC_SHARDS; s++) {
		struct dc_shard *shard = &W->eng->shard[s];

		for (uint32_t b = 0; b < shard->cap; b++) {
			for (struct dc_file *f = shard->bucket[b]; f; f = f->hash_next) {
				unsigned int nr;

				memcpy(&nr, f->key, sizeof(nr));
				W->files[nr]->known = true;
				check_file(f, W->files[nr], thorough);
				in_maps += f->map.nr_pages;
				unsynced += f->holds_sync_ref;
				files++;
			}
		}
	}
	for (unsigned int i = 0; i < W->nr_files; i++) {
		if (W->files[i]->dead && !W->files[i]->known)
			claim_clear(W->files[i], 0, NR_PAGES - 1);
		claims += W->files[i]->nr_claims;
		if (thorough && !W->files[i]->dead)
			check_accounted(W->files[i]);
	}
	for (unsigned int i = 0; i < W->exp->nr_slots; i++)
		stash += atomic_load(&W->exp->slots[i].stash);
	for (int i = 0; i < NR_WRITES; i++) {
		if (W->write[i].state == W_ADMITTED || W->write[i].state == W_WRITTEN)
			reserved += W->write[i].reserved;
		parked += W->write[i].state == W_PARKED;
	}
	check(in_maps == claims, "%llu pages in maps, %llu claimed", (unsigned long long)in_maps,
	      (unsigned long long)claims);
	check(dc_dirty_pages(W->exp) == claims, "%llu pages counted dirty, %llu are",
	      (unsigned long long)dc_dirty_pages(W->exp), (unsigned long long)claims);
	check(atomic_load(&W->exp->writeback) == W->flights,
	      "%llu pages counted as under writeback, %llu are",
	      (unsigned long long)atomic_load(&W->exp->writeback), (unsigned long long)W->flights);
	check(used == claims + W->flights + reserved + stash,
	      "used %llu is not dirty %llu + writeback %llu + reserved %llu + stash %llu",
	      (unsigned long long)used, (unsigned long long)claims, (unsigned long long)W->flights,
	      (unsigned long long)reserved, (unsigned long long)stash);
	check(atomic_load(&W->exp->used) <= limit || used <= W->last_used,
	      "used grew to %llu, over the limit of %llu", (unsigned long long)used,
	      (unsigned long long)limit);
	check(atomic_load(&W->exp->contended) == parked, "%u writes counted as parked, %llu are",
	      atomic_load(&W->exp->contended), (unsigned long long)parked);
	check(atomic_load(&W->exp->nr_unsynced) == unsynced, "unsynced files miscounted");
	check(atomic_load(&W->exp->nr_files) == files, "files miscounted");
	W->last_used = used;
}

/* ---- promises ---- */

void error_given(struct mfile *mf)
{
	mf->errors++;
	/* Whatever is under way when the engine gets to record it may fail for it, and once more what
	 * comes next. */
	for (int c = 0; c < NR_CLIENTS; c++)
		mf->allowed[c] += 1 + NR_COMMITTERS + NR_WRITES;
	for (int c = 0; c < NR_CLIENTS; c++)
		if (mf->client_seq[c] > mf->covered && mf->should_seq[c] == 0)
			mf->should_seq[c] = mf->client_seq[c];
}

static void told(struct mfile *mf, unsigned int c)
{
	uint64_t again = 0;

	mf->told[c]++;
	mf->told_at[c] = ++W->event;
	/* Of what is lost by now it knows. */
	for (uint64_t p = 0; p < NR_PAGES; p++)
		if (mf->lost[p] >= mf->of[c][p])
			mf->of[c][p] = 0;
	/* Also for others' overtaken writes: while one is owed for, who is not known is told. */
	for (unsigned int i = 0; i < NR_CLIENTS; i++)
		again += mf->again[i];
	check(mf->told[c] <= mf->allowed[c] + again,
	      "file %u: client %u was told of an error too often: %llu times, %llu allowed", mf->nr,
	      c, (unsigned long long)mf->told[c], (unsigned long long)(mf->allowed[c] + again));
	mf->must_seq[c] = 0;
	mf->should_seq[c] = 0;
}

void check_stable(struct mwrite *w, int res)
{
	struct mfile *mf = w->mf;

	if (mf->dead)
		return;
	if (res < 0) {
		told(mf, w->client);
		return;
	}
	for (uint64_t p = w->first; p < w->first + w->kept; p++)
		check(mf->safe[p] >= w->ver || mf->gone[p] >= w->ver,
		      "file %u: a stable write of client %u said yes to page %llu, version %u; durable: "
		      "%u, lost: %u",
		      mf->nr, w->client, (unsigned long long)p, w->ver, mf->safe[p], mf->lost[p]);
}

void check_commit(struct committer *co)
{
	struct mfile *mf = co->mf;
	unsigned int c = co->client;
	uint64_t first = co->offset >> DC_PAGE_SHIFT;
	uint64_t end = co->len ? ((co->offset + co->len - 1) >> DC_PAGE_SHIFT) + 1 : NR_PAGES;

	if (mf->dead)
		return;
	if (co->res < 0) {
		told(mf, c);
		return;
	}
	check(co->len != 0 || mf->must_seq[c] == 0 || mf->must_seq[c] > co->seq_at_call,
	      "file %u: client %u was not told that its write %llu is lost", mf->nr, c,
	      (unsigned long long)mf->must_seq[c]);
	check(mf->should_seq[c] == 0 || mf->should_seq[c] > co->seq_at_call,
	      "file %u: client %u had uncommitted writes when an error was seen, and was not told",
	      mf->nr, c);
	for (uint64_t p = first; p < end && p < NR_PAGES; p++) {
		version have = mf->safe[p];

		check(have >= co->own[p] || mf->of[c][p] < co->own[p] ||
			      mf->gone[p] >= co->own[p] || mf->lost[p] < co->own[p] ||
			      mf->told_at[c] > mf->lost_at[p],
		      "file %u: client %u was not told that page %llu, version %u, is lost", mf->nr,
		      c, (unsigned long long)p, co->own[p]);

		if (mf->lost[p] > have)
			have = mf->lost[p];
		if (mf->gone[p] > have)
			have = mf->gone[p];
		check(co->at_call[p] <= have,
		      "file %u: COMMIT of client %u said yes to page %llu, version %u; durable: %u",
		      mf->nr, c, (unsigned long long)p, co->at_call[p], mf->safe[p]);
	}
}

void check_end(void)
{
	for (unsigned int i = 0; i < W->nr_files; i++) {
		struct mfile *mf = W->files[i];

		for (int c = 0; c < NR_CLIENTS && !mf->dead; c++)
			check(mf->must_seq[c] == 0 && mf->should_seq[c] == 0,
			      "file %u: client %d was never told of its error", mf->nr, c);
	}
	for (int s = 0; s < DC_SHARDS; s++) {
		struct dc_shard *shard = &W->eng->shard[s];

		for (uint32_t b = 0; b < shard->cap; b++) {
			for (struct dc_file *f = shard->bucket[b]; f; f = f->hash_next) {
				unsigned int nr;

				memcpy(&nr, f->key, sizeof(nr));
				check(W->files[nr]->dead && f->holds_error_ref,
				      "file %u: still there when all is done", nr);
			}
		}
	}
}
