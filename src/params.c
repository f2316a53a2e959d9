/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The parameter table, and everything that is said about a value: parsing, ranges, cross-checks. */
#include "dontcache/params.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "util.h"

const char *const dc_io_mode_names[DC_NR_MODES] = { "buffered", "dontcache" };

#define MiB (1ULL << 20)
#define GiB (1ULL << 30)
#define TiB (1ULL << 40)
#define AT(field) offsetof(struct dc_params, field)

const struct dc_param dc_params_table[] = {
	{ "IO_Mode", DC_T_MODE, "", 0, DC_NR_MODES - 1, DC_MODE_DONTCACHE, AT(io_mode), false,
	  "What a write does. buffered: the sub-FSAL's write and nothing else, the control in every "
	  "comparison. dontcache: the sub-FSAL's write, counted against the budget below, written "
	  "back early by the flusher and dropped from the page cache behind it." },
	{ "Dirty_Bytes", DC_T_BYTES, "bytes", 4 * DC_MAX_WRITE, 16 * TiB, 192 * MiB,
	  AT(dirty_bytes), true,
	  "Hard limit on this export's dirty + writeback bytes in the page cache. A write that "
	  "would pass it is parked: its reply waits, no server thread does." },
	{ "Dirty_Background_Bytes", DC_T_BYTES, "bytes", 0, 16 * TiB, 0, AT(dirty_background_bytes),
	  true,
	  "Dirty level at which the flusher is kicked, and down to which it writes. 0: a quarter of "
	  "Dirty_Bytes. Must be below Dirty_Bytes." },
	{ "Min_Bytes", DC_T_BYTES, "bytes", 0, 16 * TiB, 0, AT(min_bytes), true,
	  "Part of the server's Dirty_Bytes (block DONTCACHE) that is this export's whatever others do, "
	  "idle or not. Must not exceed the export's Dirty_Bytes." },
	{ "Weight", DC_T_NUMBER, "", 1, DC_WEIGHT_MOST, DC_WEIGHT_NORMAL, AT(weight), true,
	  "The export's part of its device, and of what its device has of the server's Dirty_Bytes, beside "
	  "that of others there that want more than there is. Devices are not weighted: they count by how "
	  "fast they are." },
	{ "Strict_Limit", DC_T_BOOL, "", 0, 1, 0, AT(strict_limit), true,
	  "Never use more than the export's own part of the server's Dirty_Bytes, by Weight among all "
	  "exports, even while others are idle; where that is less than 2M it may have up to 2M." },
	{ "Dirty_Expire_Centisecs", DC_T_NUMBER, "centiseconds", 10, 360000, 1000,
	  AT(dirty_expire_centisecs), true,
	  "Age at which dirty data is written back even below the background level." },
	{ "Writeback_Window_Ms", DC_T_NUMBER, "milliseconds", 10, 10000, 100,
	  AT(writeback_window_ms), true,
	  "How much is under writeback at once, as time: the bytes that the device was measured to "
	  "write in so many milliseconds (at least 8 MiB). Smaller: reads and COMMITs queue less "
	  "behind the flusher." },
	{ "Parked_Bytes", DC_T_BYTES, "bytes", 4 * DC_MAX_WRITE, 1 * TiB, 64 * MiB,
	  AT(parked_bytes), true,
	  "Cap on the payload of parked writes. The connection that fills it is no longer read from "
	  "until its writes have drained; others go on. Memory: up to twice this (Ganesha keeps a "
	  "request both as received and as decoded)." },
	{ "Drop_Behind", DC_T_BOOL, "", 0, 1, 1, AT(drop_behind), true,
	  "Remove pages from the page cache once they are written back." },
	{ "Drain_Timeout_Ms", DC_T_NUMBER, "milliseconds", 0, 60000, 2000, AT(drain_timeout_ms),
	  true,
	  "How long stopping the server, or removing the export, waits for dirty data to be written "
	  "back. What is left then stays the kernel's to write: nothing is lost but the time of "
	  "whoever unmounts the file system next. Exports that end together share it." },
	{ "Audit", DC_T_BOOL, "", 0, 1, 0, AT(audit), true,
	  "Compare, every quarter of a second, what the plugin counts as dirty with what the kernel "
	  "does (cachestat(2), Linux 6.5), and log dirty pages of a file that nobody counts. For "
	  "tests and for suspicions: it walks the page cache of each file that is open. Local "
	  "processes that write to the files show up too." },
};

const size_t dc_nr_params = sizeof(dc_params_table) / sizeof(dc_params_table[0]);

#undef AT
#define AT(field) offsetof(struct dc_server_params, field)

const struct dc_param dc_server_table[] = {
	{ "Dirty_Bytes", DC_T_BYTES, "bytes", 0, 16 * TiB, 0, AT(dirty_bytes), true,
	  "Hard limit on dirty + writeback bytes of all exports together. When they want more than that "
	  "it is divided among them: by the speed of their devices, then by Weight, Min_Bytes for each. "
	  "0: an eighth of the memory, but no more than half of the kernel's own limit (vm.dirty_bytes "
	  "or vm.dirty_ratio), and 256M at least where there is memory for that. Otherwise at least 64M." },
	{ "Max_Open_Files", DC_T_NUMBER, "descriptors", 0, 1048576, 0, AT(max_open_files), false,
	  "Cap on the plugin's own descriptors, one for each file that is dirty or not yet synced. 0: a "
	  "sixteenth of RLIMIT_NOFILE, which fits beside Ganesha's own marks; otherwise at least 16." },
};

const size_t dc_nr_server_params = sizeof(dc_server_table) / sizeof(dc_server_table[0]);

static uint64_t *field(void *set, const struct dc_param *param)
{
	return (uint64_t *)((char *)set + param->offset);
}

uint64_t dc_param_get(const void *set, const struct dc_param *param)
{
	return *(const uint64_t *)((const char *)set + param->offset);
}

void dc_server_defaults(struct dc_server_params *p)
{
	for (size_t i = 0; i < dc_nr_server_params; i++)
		*field(p, &dc_server_table[i]) = dc_server_table[i].def;
}

static const struct dc_param *find(const struct dc_param *table, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcasecmp(name, table[i].name) == 0)
			return &table[i];
	return NULL;
}

const struct dc_param *dc_server_param_find(const char *name)
{
	return find(dc_server_table, dc_nr_server_params, name);
}

void dc_params_defaults(struct dc_params *p)
{
	for (size_t i = 0; i < dc_nr_params; i++)
		*field(p, &dc_params_table[i]) = dc_params_table[i].def;
}

const struct dc_param *dc_param_find(const char *name)
{
	return find(dc_params_table, dc_nr_params, name);
}

const char *dc_size_text(uint64_t bytes, char *buf)
{
	static const char unit[] = "KMGT";
	int u = -1;

	while (bytes != 0 && bytes % 1024 == 0 && u < 3) {
		bytes /= 1024;
		u++;
	}
	if (u < 0)
		snprintf(buf, 32, "%" PRIu64, bytes);
	else
		snprintf(buf, 32, "%" PRIu64 "%c", bytes, unit[u]);
	return buf;
}

/* "64M" -> 67108864. Refuses signs, fractions, unknown units, overflow. */
static bool parse_number(const char *text, bool sizes, uint64_t *out)
{
	unsigned long long v;
	char *end;
	int shift = 0;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	/* Not base 0: 010M is ten megabytes to everybody but C. */
	v = strtoull(text, &end, text[0] == '0' && (text[1] | 0x20) == 'x' ? 16 : 10);
	if (errno != 0)
		return false;
	if (sizes && *end != '\0') {
		switch (toupper((unsigned char)*end)) {
		case 'K':
			shift = 10;
			break;
		case 'M':
			shift = 20;
			break;
		case 'G':
			shift = 30;
			break;
		case 'T':
			shift = 40;
			break;
		default:
			return false;
		}
		end++;
		if (strcasecmp(end, "B") == 0 || strcasecmp(end, "iB") == 0)
			end += strlen(end);
	}
	if (*end != '\0' || v > UINT64_MAX >> shift)
		return false;
	*out = (uint64_t)v << shift;
	return true;
}

static bool parse_bool(const char *text, uint64_t *out)
{
	static const char *const yes[] = { "true", "yes", "on", "1" };
	static const char *const no[] = { "false", "no", "off", "0" };

	for (int i = 0; i < 4; i++) {
		if (strcasecmp(text, yes[i]) == 0) {
			*out = 1;
			return true;
		}
		if (strcasecmp(text, no[i]) == 0) {
			*out = 0;
			return true;
		}
	}
	return false;
}

static bool parse_mode(const char *text, uint64_t *out)
{
	for (int i = 0; i < DC_NR_MODES; i++) {
		if (strcasecmp(text, dc_io_mode_names[i]) == 0) {
			*out = i;
			return true;
		}
	}
	return false;
}

/* What 0, which stands for "by itself", does not stand for. */
static uint64_t least(const struct dc_param *param)
{
	if (param == &dc_server_table[0])
		return 64 * MiB;
	return param == &dc_server_table[1] ? 16 : param->min;
}

static void allowed(const struct dc_param *param, char *buf, size_t len)
{
	const char *or0 = least(param) != param->min ? ", or 0: by itself" : "";
	char a[32], b[32];

	switch (param->type) {
	case DC_T_BYTES:
		snprintf(buf, len,
			 "%s to %s bytes%s; K, M, G and T are understood, the value then "
			 "in quotes",
			 dc_size_text(least(param), a), dc_size_text(param->max, b), or0);
		break;
	case DC_T_NUMBER:
		snprintf(buf, len, "%" PRIu64 " to %" PRIu64 " %s%s", least(param), param->max,
			 param->unit, or0);
		break;
	case DC_T_BOOL:
		snprintf(buf, len, "true or false");
		break;
	case DC_T_MODE:
		snprintf(buf, len, "%s or %s", dc_io_mode_names[0], dc_io_mode_names[1]);
		break;
	}
}

bool dc_param_set(void *set, const struct dc_param *param, const char *text, char *msg)
{
	char range[192];
	uint64_t v = 0;
	bool ok = false;

	switch (param->type) {
	case DC_T_BYTES:
		ok = parse_number(text, true, &v);
		break;
	case DC_T_NUMBER:
		ok = parse_number(text, false, &v);
		break;
	case DC_T_BOOL:
		ok = parse_bool(text, &v);
		break;
	case DC_T_MODE:
		ok = parse_mode(text, &v);
		break;
	}
	if (ok && v <= param->max && (v >= least(param) || v == param->min)) {
		*field(set, param) = v;
		return true;
	}
	allowed(param, range, sizeof(range));
	snprintf(msg, DC_PARAM_MSG, "%s = \"%.60s\" %s; allowed: %s", param->name, text,
		 ok ? "is out of range" : "is not a value of this parameter", range);
	return false;
}

uint64_t dc_server_dirty_bytes(const struct dc_server_params *p, const struct dc_machine *m)
{
	uint64_t bytes = m->ram / 8;

	if (p->dirty_bytes)
		return p->dirty_bytes;
	if (m->kernel_dirty)
		bytes = dc_min_u64(bytes, m->kernel_dirty / 2);
	/* However little is free just now. */
	return bytes ? dc_max_u64(bytes, dc_min_u64(256 * MiB, dc_max_u64(m->ram / 8, 64 * MiB))) :
		       0;
}

uint64_t dc_params_background(const struct dc_params *p)
{
	return p->dirty_background_bytes ? p->dirty_background_bytes : p->dirty_bytes / 4;
}

static uint64_t read_number(const char *path)
{
	unsigned long long v = 0;
	FILE *f = fopen(path, "re");

	if (f) {
		if (fscanf(f, "%llu", &v) != 1)
			v = 0;
		fclose(f);
	}
	return v;
}

/* The kernel's limits: *_bytes when set, else *_ratio of the memory that may hold dirty pages,
 * which MemAvailable comes near enough to for a warning. */
void dc_machine_read(struct dc_machine *m)
{
	unsigned long long kb, avail = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	memset(m, 0, sizeof(*m));
	if (f) {
		while (fgets(line, sizeof(line), f)) {
			if (sscanf(line, "MemTotal: %llu", &kb) == 1)
				m->ram = kb * 1024;
			if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
				avail = kb * 1024;
		}
		fclose(f);
	}
	m->kernel_dirty = read_number("/proc/sys/vm/dirty_bytes");
	if (m->kernel_dirty == 0)
		m->kernel_dirty = avail / 100 * read_number("/proc/sys/vm/dirty_ratio");
	m->kernel_dirty_background = read_number("/proc/sys/vm/dirty_background_bytes");
	if (m->kernel_dirty_background == 0)
		m->kernel_dirty_background =
			avail / 100 * read_number("/proc/sys/vm/dirty_background_ratio");
}

int dc_params_check(const struct dc_params *p, const struct dc_machine *m,
		    void (*say)(void *arg, bool error, const struct dc_param *param,
				const char *msg),
		    void *arg)
{
	const struct dc_param *limit = dc_param_find("Dirty_Bytes");
	const struct dc_param *level = dc_param_find("Dirty_Background_Bytes");
	const struct dc_param *parked = dc_param_find("Parked_Bytes");
	uint64_t bg = dc_params_background(p);
	char a[32], b[32], msg[DC_PARAM_MSG];
	int errors = 0;

	if (p->io_mode == DC_MODE_BUFFERED)
		return 0;
	if (bg >= p->dirty_bytes) {
		snprintf(msg, sizeof(msg),
			 "Dirty_Background_Bytes = %s is not below Dirty_Bytes = %s; allowed: 0 to "
			 "%s (0: a quarter of Dirty_Bytes)",
			 dc_size_text(bg, a), dc_size_text(p->dirty_bytes, b),
			 dc_size_text(p->dirty_bytes - 1, (char[32]){ 0 }));
		say(arg, true, level, msg);
		errors++;
	}
	if (p->min_bytes > p->dirty_bytes) {
		snprintf(msg, sizeof(msg),
			 "Min_Bytes = %s is above Dirty_Bytes = %s; allowed: 0 to Dirty_Bytes",
			 dc_size_text(p->min_bytes, a), dc_size_text(p->dirty_bytes, b));
		say(arg, true, dc_param_find("Min_Bytes"), msg);
		errors++;
	}
	if (m->kernel_dirty && p->dirty_bytes > m->kernel_dirty) {
		snprintf(msg, sizeof(msg),
			 "Dirty_Bytes = %s is above the kernel's own limit of about %" PRIu64
			 " MiB "
			 "(vm.dirty_bytes or vm.dirty_ratio): the kernel will stop writers first, in "
			 "server threads. Suggested: at most %" PRIu64
			 " MiB, or raise vm.dirty_bytes",
			 dc_size_text(p->dirty_bytes, a), m->kernel_dirty >> 20,
			 m->kernel_dirty >> 21);
		say(arg, false, limit, msg);
	} else if (m->kernel_dirty_background && bg > m->kernel_dirty_background) {
		snprintf(msg, sizeof(msg),
			 "Dirty_Background_Bytes = %s is above the kernel's own background level of "
			 "about %" PRIu64
			 " MiB (vm.dirty_background_bytes or _ratio): the kernel's "
			 "flusher will start before this export's. Suggested: at most %" PRIu64
			 " MiB",
			 dc_size_text(bg, a), m->kernel_dirty_background >> 20,
			 m->kernel_dirty_background >> 20);
		say(arg, false, level, msg);
	}
	if (m->ram && p->dirty_bytes + 2 * p->parked_bytes > m->ram / 2) {
		snprintf(msg, sizeof(msg),
			 "Dirty_Bytes = %s and Parked_Bytes = %s together may take more than half of "
			 "this machine's memory (%" PRIu64 " MiB)",
			 dc_size_text(p->dirty_bytes, a), dc_size_text(p->parked_bytes, b),
			 m->ram >> 20);
		say(arg, false, parked, msg);
	}
	return errors;
}
