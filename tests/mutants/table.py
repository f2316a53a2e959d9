# SPDX-License-Identifier: LGPL-3.0-or-later
"""The mutants: each is one lie or one slip that an engine like this could have, and the test that must notice.

Edits are (file, exact text, replacement); the text must occur exactly once. Short and stable texts are best: a
text that is not found is a failure of the run, since a mutant that is not made proves nothing.
"""

import dataclasses


@dataclasses.dataclass
class Mutant:
    name: str
    what: str                           # what it does wrong, in words
    edits: list
    target: str                         # a program below tests/, or a Python test of the plugin
    args: tuple = ()
    fast: bool = False                  # part of ./check


MODEL = ('--count', '1500')

MUTANTS = [
    Mutant('error_not_kept', 'a failed writeback is owed to nobody', [
        ('src/file_errors.c', 'dc_owe_locked(file, &file->writers[i], err);', '(void)err;')],
        'test_commit', fast=True),
    Mutant('error_told_to_the_first_only', 'whoever asks first is told, and then all is forgotten', [
        ('src/file_errors.c', '\tw->err = 0;\n\tw->kin_told = 0;',
         '\tfor (uint32_t j = 0; j < file->nr_writers; j++)\n\t\tfile->writers[j].err = 0;\n\tw->kin_told = 0;')],
        'test_commit'),
    Mutant('other_connection_not_told', 'a client with two connections is told through the one it wrote by only', [
        ('src/file_errors.c', '\t\terr = kin->err;', '\t\terr = err ? kin->err : 0;')],
        'test_stable'),
    Mutant('error_during_the_write', 'an error that came before the write was recorded does not concern it', [
        ('src/file.c', 'if (atomic_load(&file->errors) != errors)', 'if (errors == UINT64_MAX)')],
        'test_model', MODEL),
    Mutant('generation_stays', 'an error leaves the NFSv4 verifier as it is', [
        ('src/file_errors.c', 'atomic_fetch_add(&exp->error_generation, 1);', ';')],
        'test_commit'),
    Mutant('commit_without_sync', 'COMMIT says OK and syncs nothing', [
        ('src/commit.c', '*res = be->ops->sync(be, fd);', '*res = 0 * fd;')],
        'test_model', MODEL),
    Mutant('seq_read_after_the_sync', 'a write during the fdatasync counts as covered by it', [
        ('src/commit.c', 'if (*res == 0 && seq > file->synced_seq)\n\t\tfile->synced_seq = seq;',
         'if (*res == 0 && file->write_seq >= seq)\n\t\tfile->synced_seq = file->write_seq;')],
        'test_model', MODEL, fast=True),
    Mutant('range_commit_asks_nobody', 'a COMMIT of a range misses an error that only the older descriptor knows of', [
        ('src/stable.c', 'told = be->ops->error(be, file->fd);', 'told = 0 * (be == NULL);')],
        'test_stable'),
    Mutant('dropped_while_at_rest', 'a file that is pinned for a drop stays among the idle ones', [
        ('src/drop.c', 'dc_idle_remove_locked(file); /* it may have come to rest just now */', ';')],
        'test_stable'),
    Mutant('old_telling_hides_new_error', 'a new error is forgotten with one that was told long ago', [
        ('src/file_errors.c', 'w->told_at = 0; /* of this one nobody was told yet */', ';')],
        'test_stable'),
    Mutant('turn_eats_the_error', 'a sync counts though a turn beside it may have consumed its error', [
        ('src/commit.c', 'dc_reap_locked(file, file->turn_id);', ';')],
        'test_model', MODEL),
    Mutant('quiet_sync_eats_the_error', 'an error of the sync of a quiet file is dropped', [
        ('src/flusher.c', 'dc_error_locked(file, turn->op.res);', ';')],
        'test_commit'),
    Mutant('stable_error_told_to_the_writer_only', 'the failed sync of a stable write is owed to nobody else', [
        ('src/stable.c', 'dc_error_locked(file, res);', ';')],
        'test_model', MODEL),
    Mutant('stable_of_a_rider_not_covered', 'who shares the sync of another is not in its range', [
        ('src/stable.c', 's->op.len = end - offset;', 's->op.len = s->len;')],
        'test_model', MODEL),
    Mutant('stable_for_the_next_is_not_led', 'stable writes that came during a sync wait for ever', [
        ('src/stable.c', 'puts += judge_locked(file, s, res);\n\tleader = lead_locked(file, &puts);',
         'puts += judge_locked(file, s, res);\n\tleader = NULL;')],
        'test_model', MODEL),
    Mutant('stable_ignores_errors_of_others', 'an error that came during a stable write does not concern it', [
        ('src/stable.c', 'if (s->res == 0 && atomic_load(&file->errors) != s->errors)',
         'if (s->res == 0 && s->errors == UINT64_MAX)')],
        'test_model', MODEL),
    Mutant('stable_range_cut', 'the sync of a stable write leaves out the last byte, and its page', [
        ('src/stable.c', 's->op.len = end - offset;', 's->op.len = end - offset - (end > offset + 1);')],
        'test_model', MODEL),
    Mutant('turn_error_ignored', 'an error of background writeback is dropped', [
        ('src/flusher.c', 'dc_error_locked(file, res < 0 ? res : told);', ';')],
        'test_commit'),
    Mutant('kick_bit_cleared_last', 'the kick bit is cleared after the counters were read, not before', [
        ('src/flusher.c',
         '\tif (!atomic_exchange(&exp->kicked, false))\n\t\treturn;\n\tpthread_mutex_lock(&exp->lock);\n'
         '\tif (atomic_load(&exp->writeback) == 0)\n\t\tdc_rate_end(&exp->done, now);\n'
         '\tmore = work_wanted(exp, now, &reason);\n\tpthread_mutex_unlock(&exp->lock);\n',
         '\tpthread_mutex_lock(&exp->lock);\n\tmore = work_wanted(exp, now, &reason);\n'
         '\tpthread_mutex_unlock(&exp->lock);\n\tif (!atomic_exchange(&exp->kicked, false))\n\t\treturn;\n')],
        'test_kick', fast=True),
    Mutant('claim_taken_not_written', 'a turn takes a claim off that it does not write', [
        ('src/turn.c', 'take->end = end;', 'take->end = end - (end > first + 1);')],
        'test_model', MODEL),
    Mutant('overlap_not_strict', 'what was dirtied again under writeback is skipped, and its claim is gone', [
        ('src/flusher.c', 'turn->op.strict = overlaps_locked(file, turn);',
         'turn->op.strict = overlaps_locked(file, turn) && now == 0;'),
        ('src/flusher.c', 'turn->op.strict = under_writeback(dev, turn);',
         'turn->op.strict = under_writeback(dev, turn) && now == 0;')],
        'test_model', MODEL),
    Mutant('refused_turn_forgotten', 'a turn that the kernel refused counts as written', [
        ('src/flusher.c', 'res = dev->be->ops->writeback(dev->be, turn->op.fd, turn->op.offset, turn->op.len);',
         'res = 0;')],
        'test_engine'),
    Mutant('dirty_window_dropped', 'drop-behind takes windows that hold claims anew', [
        ('src/turn.c', 'uint64_t dirty = page / DC_WINDOW_PAGES;', 'uint64_t dirty = DC_NO_PAGE - 0 * page;')],
        'test_engine'),
    Mutant('unlinked_keeps_claims', 'the claims of an unlinked file do not end', [
        ('src/file.c', '*pages = cancel_locked(file, 0, DC_NO_PAGE - 1, &puts);', '*pages = 0;')],
        'test_engine', fast=True),
    Mutant('truncate_takes_the_edge', 'the page that holds the new end loses its claim', [
        ('src/file.c', '(new_size % DC_PAGE_SIZE != 0)', '0 * (new_size % DC_PAGE_SIZE)')],
        'test_engine'),
    Mutant('truncate_races_a_write', 'claims of a write that came during a truncation end with it', [
        ('src/file.c', 'if (file->write_seq + file->edges == seq)', 'if (file->write_seq + file->edges >= seq)')],
        'test_engine'),
    Mutant('one_page_over', 'the budget lets one page through', [
        ('src/admit.c', 'used > limit - pages)', 'used > limit - pages + 1)')],
        'test_admit', fast=True),
    Mutant('release_wakes_nobody', 'what is released is not given to those who wait', [
        ('src/admit.c', '\t\tdc_pool_repay(exp);\n\tif (atomic_load(&exp->contended) != 0)\n\t\tdc_dispatch(exp);',
         '\t\tdc_pool_repay(exp);')],
        'test_admit'),
    Mutant('unfair', 'writes are let in in the order they came, whoever sent them', [
        ('src/fair.c', '\tif (a->first->start != b->first->start)\n\t\treturn a->first->start < b->first->start;\n', '')],
        'test_admit'),
    Mutant('fairness_forgets', 'a client whose queue ran empty begins anew', [
        ('src/fair.c', 'return dc_max_u64(f->now > LAG ? f->now - LAG : 0, flow->finish);',
         'return flow->first ? flow->finish : f->now;')],
        'test_fair'),
    Mutant('credit_for_nothing', 'writes above freerun cost no credit', [
        ('src/admit.c', 'exp->pace.credit -= (double)bytes / DC_PAGE_SIZE;', '(void)bytes;')],
        'test_pacing'),
    Mutant('grants_from_nothing', 'an export that comes up against its grant gets more, whether there is any', [
        ('src/pool.c', '} else if (want > room_for(pool, exp) ||', '} else if (want > pool->total ||')],
        'test_pool'),
    Mutant('lowered_limit_is_a_gift', 'what an export uses beyond its lowered limit is granted to others', [
        ('src/pool.c', 'set_overdue(pool, exp, used > grant ? used - grant : 0);', 'set_overdue(pool, exp, 0);')],
        'test_pool'),
    Mutant('parking_puts_off', 'each write that parks puts off the look at those that wait', [
        ('src/admit.c', '\tif (first)\n\t\tatomic_store(&exp->due', '\tif (first || true)\n\t\tatomic_store(&exp->due')],
        'test_pacing'),
    Mutant('bursts_pile_up', 'the time of a burst counts for nothing once it is over', [
        ('src/pacing.c', '\tr->before = lasted(r, now);\n\tr->since = 0;', '\tr->since = 0;')],
        'test_pacing'),
    Mutant('folio_not_counted', 'what the kernel counts dirty beyond the bytes written is not claimed', [
        ('src/file.c', 'inflated = dc_inflation_claim_locked(file, &in, reserved - added);', 'inflated = 0;')],
        'test_engine'),

    # Of the plugin: a server, a disk and a power cut are needed to notice. Root only.
    Mutant('recorded_before_written', 'a write is recorded, and only then happens', [
        ('fsal/write.c', '\tif (e->faulty && write_fault(r, io))',
         '\tif (pinned && !r->stable)\n\t\tdc_write_done(file, io->offset, io->iov[0].iov_len, pages, client,\n'
         '\t\t\t      r->errors, false);\n\tif (e->faulty && write_fault(r, io))'),
        ('fsal/write.c', 'dc_write_done(r->file, io->offset, len, r->pages, r->client, r->errors, false);',
         '(void)len;')],
        'tests/integration/test_record_order.py', ('v3',)),
    Mutant('commit_of_the_plugin_lies', 'COMMIT is answered without asking the engine', [
        ('fsal/write.c', 'err = dc_commit(file, dcf_client_id(), (uint64_t)offset, len);', 'err = 0;')],
        'tests/integration/test_problems_data.py', ('problem_09',)),
    Mutant('verifier_of_errors_stays', 'an error leaves the verifier of NFSv4 replies as it is', [
        ('fsal/export.c', 'v = e->verifier ^ dc_export_error_generation(e->budget) * 0x9e3779b97f4a7c15ULL;',
         'v = e->verifier;')],
        'tests/integration/test_problems_errors.py', ('problem_01',)),
]
