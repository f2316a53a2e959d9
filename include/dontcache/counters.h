/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * An export's running totals, declared once: enum, names, units and help follow from this list.
 *
 * Each is kept per CPU slot, so that counting costs a writer no shared cache line; a reader sums.
 */
#ifndef DONTCACHE_COUNTERS_H
#define DONTCACHE_COUNTERS_H

/* X(id, name in reports, unit, help) */
#define DC_COUNTERS(X)                                                                             \
	X(WRITES, "writes_total", "writes", "WRITEs recorded in the dirty map")                    \
	X(WRITTEN_CLIENT, "client_bytes_total", "bytes", "bytes of those WRITEs")                  \
	X(DIRTIED, "dirtied_bytes_total", "bytes", "bytes that became dirty")                      \
	X(INFLATED, "inflated_bytes_total", "bytes",                                               \
	  "of those: counted dirty by the kernel only because they share a folio with a write")    \
	X(CLEANED_BACKGROUND, "written_background_bytes_total", "bytes",                           \
	  "written back because the export was over its background level")                         \
	X(CLEANED_EXPIRE, "written_expire_bytes_total", "bytes", "written back because of age")    \
	X(CLEANED_LIMIT, "written_limit_bytes_total", "bytes",                                     \
	  "written back because writes were parked")                                               \
	X(CLEANED_COMMIT, "written_commit_bytes_total", "bytes", "written back for a COMMIT")      \
	X(CLEANED_SHUTDOWN, "written_shutdown_bytes_total", "bytes",                               \
	  "written back while the export was drained")                                             \
	X(CANCELLED, "cancelled_bytes_total", "bytes",                                             \
	  "dirty bytes that truncation or deletion made unnecessary to write")                     \
	X(DROPPED, "drop_behind_bytes_total", "bytes",                                             \
	  "file ranges whose clean pages were dropped behind the flusher")                         \
	X(TURNS, "turns_total", "turns", "flusher turns submitted")                                \
	X(KICKS, "kicks_total", "kicks", "kicks that woke the flusher")                            \
	X(KICKS_COALESCED, "kicks_coalesced_total", "kicks", "kicks that found the bit set")       \
	X(PARKED, "parked_total", "writes", "writes that had to be parked")                        \
	X(PARKED_NS, "parked_ns_total", "ns", "time that writes were parked")                      \
	X(HELD, "held_total", "times", "a connection was held back over Parked_Bytes")             \
	X(REFUSED, "refused_total", "writes", "writes answered JUKEBOX/DELAY, the last brake")     \
	X(COMMITS, "commits_total", "commits", "COMMITs and stable writes")                        \
	X(COMMITS_FREE, "commits_free_total", "commits", "answered without I/O: already durable")  \
	X(COMMITS_SHARED, "commits_shared_total", "commits", "answered by another's fdatasync")    \
	X(SYNCS, "syncs_total", "calls", "fdatasync calls")                                        \
	X(ERRORS, "errors_total", "errors", "failed writebacks and syncs recorded")                \
	X(AUDITS, "audits_total", "files",                                                         \
	  "files whose dirty pages were compared with the kernel's")                               \
	X(UNCLAIMED, "audit_unclaimed_bytes_total", "bytes",                                       \
	  "found dirty by an audit and counted by nobody")                                         \
	X(WRITE_THROUGH, "write_through_total", "writes",                                          \
	  "writes synced at once because no file descriptor of our own was to be had")

enum dc_counter {
#define X(id, name, unit, help) DC_CTR_##id,
	DC_COUNTERS(X)
#undef X
		DC_NR_COUNTERS
};

struct dc_counter_info {
	const char *name, *unit, *help;
};

extern const struct dc_counter_info dc_counter_info[DC_NR_COUNTERS];

#endif
