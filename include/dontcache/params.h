/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The parameters of an export, and of the server, declared once (src/params.c). The parser of the
 * configuration, config/dontcache.conf and docs/parameters.md all follow from those tables.
 */
#ifndef DONTCACHE_PARAMS_H
#define DONTCACHE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest WRITE that the plugin lets Ganesha accept, in bytes: what Linux clients send at
 * most. A limit must hold several of them, or one write alone could break it. */
#define DC_MAX_WRITE (1UL << 20)

/* Weight of an export that nobody gave one. */
#define DC_WEIGHT_NORMAL 100
#define DC_WEIGHT_MOST 1000

enum dc_io_mode { DC_MODE_BUFFERED, DC_MODE_DONTCACHE, DC_NR_MODES };

/** Names as written in the configuration, in the order of enum dc_io_mode. */
extern const char *const dc_io_mode_names[DC_NR_MODES];

/* Values are in the unit the table gives: bytes, centiseconds, milliseconds, or 0/1. */
struct dc_params {
	uint64_t io_mode; /* enum dc_io_mode */
	uint64_t dirty_bytes;
	uint64_t dirty_background_bytes; /* 0: a quarter of dirty_bytes */
	uint64_t min_bytes;
	uint64_t weight;
	uint64_t strict_limit;
	uint64_t dirty_expire_centisecs;
	uint64_t writeback_window_ms;
	uint64_t parked_bytes;
	uint64_t drop_behind;
	uint64_t drain_timeout_ms;
	uint64_t audit;
};

/* Of the whole server: block DONTCACHE. */
struct dc_server_params {
	uint64_t dirty_bytes; /* 0: dc_server_dirty_bytes() tells */
	uint64_t max_open_files;
};

enum dc_param_type { DC_T_BYTES, DC_T_NUMBER, DC_T_BOOL, DC_T_MODE };

struct dc_param {
	const char *name; /* as in the configuration file */
	enum dc_param_type type;
	const char *unit;
	uint64_t min, max, def;
	size_t offset; /* in struct dc_params, or dc_server_params */
	bool live;     /* may change while the export is served */
	const char *help;
};

extern const struct dc_param dc_params_table[];
extern const size_t dc_nr_params;
extern const struct dc_param dc_server_table[];
extern const size_t dc_nr_server_params;

/** Room enough for every message of this header. */
#define DC_PARAM_MSG 320

/** Sets every parameter to its default. */
void dc_params_defaults(struct dc_params *p);

void dc_server_defaults(struct dc_server_params *p);

/** Finds a parameter by name, case-insensitive as in Ganesha; NULL if there is none. */
const struct dc_param *dc_param_find(const char *name);
const struct dc_param *dc_server_param_find(const char *name);

/** The value of one parameter; `set`: the struct that its table is of. */
uint64_t dc_param_get(const void *set, const struct dc_param *param);

/**
 * Parses `text` (sizes may end in K, M, G or T, of 1024; bool: true/false/yes/no/on/off/1/0) and
 * stores it in *set, the struct that the parameter's table is of.
 * @return true, or false with a message in msg[DC_PARAM_MSG] that names the value and the allowed
 *         range; *set is then unchanged.
 */
bool dc_param_set(void *set, const struct dc_param *param, const char *text, char *msg);

/* What the machine says to a set of parameters; all in bytes. 0: unknown. */
struct dc_machine {
	uint64_t ram;
	uint64_t kernel_dirty;		  /* the kernel's own limit on dirty pages */
	uint64_t kernel_dirty_background; /* and its background level */
};

/** Reads /proc/meminfo and /proc/sys/vm. Fields that cannot be read stay 0. */
void dc_machine_read(struct dc_machine *m);

/** The server's Dirty_Bytes in force: the configured one, or, of 0, an eighth of the memory and no more
 * than half of the kernel's own limit, from where on it would throttle the server's threads. 64 MiB at
 * least. 0 if the machine could not be read: no budget for all. */
uint64_t dc_server_dirty_bytes(const struct dc_server_params *p, const struct dc_machine *m);

/** The background level in force, in bytes: the configured one, or a quarter of the limit. */
uint64_t dc_params_background(const struct dc_params *p);

/**
 * Checks the parameters against each other and against the machine.
 * `say` is called for each finding: error (the set must be refused) or warning; `param` names the
 * culprit, msg holds its value and the allowed range.
 * @return number of errors.
 */
int dc_params_check(const struct dc_params *p, const struct dc_machine *m,
		    void (*say)(void *arg, bool error, const struct dc_param *param,
				const char *msg),
		    void *arg);

/** Writes "64M", "1536K" or "4097" into buf[32]: the shortest exact form. */
const char *dc_size_text(uint64_t bytes, char *buf);

#endif
