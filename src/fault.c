/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The rules of fault injection: parsing and matching. What they do to a device is in backend_fault.c. */
#define _GNU_SOURCE
#include "dontcache/fault.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "dontcache/params.h"
#include "util.h"

#define RULES_MAX 16
#define NS_PER_MS 1000000ULL

struct rule {
	unsigned int ops; /* bits */
	int err;
	uint64_t delay_ns, len;
	uint64_t count, after, first, end, until;
	double p;
	uint64_t rng;
};

struct dc_fault {
	uint64_t (*now_ns)(void *host);
	void *host;
	_Atomic uint64_t generation;
	_Atomic unsigned int nr; /* 0: nothing to look at */
	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t changed;
	struct rule rule[RULES_MAX];
};

static const struct {
	const char *name;
	unsigned int ops;
} op_names[] = {
	{ "writeback", 1U << DC_FAULT_WRITEBACK },
	{ "sync", 1U << DC_FAULT_SYNC },
	{ "write", 1U << DC_FAULT_WRITE },
	{ "drop", 1U << DC_FAULT_DROP },
	{ "any", 1U << DC_FAULT_WRITEBACK | 1U << DC_FAULT_SYNC | 1U << DC_FAULT_WRITE },
};

static const struct {
	const char *name;
	int err;
} err_names[] = {
	{ "EIO", -EIO },       { "ENOSPC", -ENOSPC }, { "EDQUOT", -EDQUOT }, { "EROFS", -EROFS },
	{ "ENOMEM", -ENOMEM }, { "EINVAL", -EINVAL }, { "ENOSYS", -ENOSYS },
};

#define NR(table) (sizeof(table) / sizeof((table)[0]))

struct dc_fault *dc_fault_new(uint64_t (*now_ns)(void *host), void *host)
{
	struct dc_fault *f = dc_zalloc(sizeof(*f));

	f->now_ns = now_ns;
	f->host = host;
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->changed, NULL);
	return f;
}

void dc_fault_free(struct dc_fault *f)
{
	if (!f)
		return;
	pthread_cond_destroy(&f->changed);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

static bool number(const char *text, uint64_t scale, uint64_t *out)
{
	char *end;
	unsigned long long v;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || *end || v > UINT64_MAX / scale)
		return false;
	*out = v * scale;
	return true;
}

static bool size(const char *text, uint64_t *out)
{
	static const char suffixes[] = "KMGT";
	size_t n = strlen(text);
	const char *s = n ? strchr(suffixes, text[n - 1] & ~0x20) : NULL;
	char digits[24];

	if (!s)
		return number(text, 1, out);
	if (n > sizeof(digits))
		return false;
	memcpy(digits, text, n - 1);
	digits[n - 1] = '\0';
	return number(digits, 1ULL << (10 * (s - suffixes + 1)), out);
}

static bool parse_ops(struct rule *r, char *text)
{
	char *rest, *name;

	for (name = strtok_r(text, "|", &rest); name; name = strtok_r(NULL, "|", &rest)) {
		size_t i = 0;

		while (i < NR(op_names) && strcasecmp(name, op_names[i].name) != 0)
			i++;
		if (i == NR(op_names))
			return false;
		r->ops |= op_names[i].ops;
	}
	return r->ops != 0;
}

static bool parse_what(struct rule *r, const char *text)
{
	r->len = UINT64_MAX;
	if (strcasecmp(text, "hang") == 0) {
		r->delay_ns = UINT64_MAX;
		return true;
	}
	if (strncasecmp(text, "delay=", 6) == 0)
		return number(text + 6, NS_PER_MS, &r->delay_ns);
	if (strncasecmp(text, "short=", 6) == 0)
		return size(text + 6, &r->len);
	for (size_t i = 0; i < NR(err_names); i++) {
		if (strcasecmp(text, err_names[i].name) == 0) {
			r->err = err_names[i].err;
			return true;
		}
	}
	return false;
}

static bool parse_key(struct rule *r, const char *text, uint64_t now)
{
	char *end;

	if (strncasecmp(text, "count=", 6) == 0)
		return number(text + 6, 1, &r->count) && r->count > 0;
	if (strncasecmp(text, "after=", 6) == 0)
		return number(text + 6, 1, &r->after);
	if (strncasecmp(text, "seed=", 5) == 0)
		return number(text + 5, 1, &r->rng);
	if (strncasecmp(text, "for=", 4) == 0) {
		if (!number(text + 4, NS_PER_MS, &r->until))
			return false;
		r->until += now;
		return true;
	}
	if (strncasecmp(text, "p=", 2) == 0) {
		r->p = strtod(text + 2, &end);
		return end != text + 2 && *end == '\0' && r->p >= 0 && r->p <= 1;
	}
	if (strncasecmp(text, "range=", 6) == 0) {
		const char *dash = strchr(text, '-');
		char first[32];

		if (!dash || (size_t)(dash - text - 6) >= sizeof(first))
			return false;
		memcpy(first, text + 6, (size_t)(dash - text - 6));
		first[dash - text - 6] = '\0';
		return size(first, &r->first) && size(dash + 1, &r->end) && r->first < r->end;
	}
	return false;
}

/* NULL, or what is wrong. */
static const char *parse_rule(struct rule *r, char *text, uint64_t now)
{
	char *rest, *ops = strtok_r(text, ":", &rest), *what = strtok_r(NULL, ":", &rest), *key;

	*r = (struct rule){ .count = UINT64_MAX, .end = UINT64_MAX, .until = UINT64_MAX, .p = 1 };
	if (!ops || !parse_ops(r, ops))
		return "it must begin with writeback, sync, write, drop or any (several: a|b) and a colon";
	if (!what || !parse_what(r, what))
		return "after the operations must come EIO, ENOSPC, EDQUOT, EROFS, ENOMEM, EINVAL, ENOSYS, "
		       "short=BYTES, delay=MS or hang";
	for (key = strtok_r(rest, ",", &rest); key; key = strtok_r(NULL, ",", &rest))
		if (!parse_key(r, key, now))
			return "its keys are count=N (at least 1), after=N, range=FIRST-END, p=0.0..1.0, "
			       "seed=N, for=MS, joined by commas";
	if (r->len != UINT64_MAX && r->ops != 1U << DC_FAULT_WRITE)
		return "short=BYTES is for write only";
	r->rng = (r->rng + 1) * 0x9e3779b97f4a7c15ULL;
	return NULL;
}

bool dc_fault_set(struct dc_fault *f, const char *spec, char *msg)
{
	struct rule rules[RULES_MAX];
	char copy[512], one[128], *rest, *text;
	const char *wrong;
	unsigned int nr = 0;

	if (strlen(spec) >= sizeof(copy)) {
		snprintf(msg, DC_FAULT_MSG, "Fault_Injection: longer than %zu characters",
			 sizeof(copy) - 1);
		return false;
	}
	strcpy(copy, strcasecmp(spec, "off") == 0 || strcasecmp(spec, "on") == 0 ? "" : spec);
	for (text = strtok_r(copy, "; ", &rest); text; text = strtok_r(NULL, "; ", &rest)) {
		snprintf(one, sizeof(one), "%s", text);
		wrong = nr == RULES_MAX ? "only 16 rules are possible" :
					  parse_rule(&rules[nr], text, f->now_ns(f->host));
		if (wrong) {
			snprintf(msg, DC_FAULT_MSG, "Fault_Injection: rule \"%.60s\": %s", one,
				 wrong);
			return false;
		}
		nr++;
	}
	pthread_mutex_lock(&f->lock);
	memcpy(f->rule, rules, nr * sizeof(rules[0]));
	atomic_store(&f->nr, nr);
	atomic_fetch_add(&f->generation, 1);
	pthread_cond_broadcast(&f->changed);
	pthread_mutex_unlock(&f->lock);
	return true;
}

static bool by_chance(struct rule *r)
{
	r->rng ^= r->rng >> 12;
	r->rng ^= r->rng << 25;
	r->rng ^= r->rng >> 27;
	return (double)(r->rng * 0x2545f4914f6cdd1dULL >> 11) * 0x1p-53 < r->p;
}

static bool applies(struct rule *r, enum dc_fault_op op, uint64_t offset, uint64_t len,
		    uint64_t now)
{
	uint64_t end = len ? offset + len : UINT64_MAX;

	if (!(r->ops & 1U << op) || r->count == 0 || now > r->until || offset >= r->end ||
	    end <= r->first || (r->p < 1 && !by_chance(r)))
		return false;
	if (r->after > 0) {
		r->after--;
		return false;
	}
	if (r->count != UINT64_MAX)
		r->count--;
	return true;
}

bool dc_fault_decide(struct dc_fault *f, enum dc_fault_op op, uint64_t offset, uint64_t len,
		     struct dc_fault_hit *hit)
{
	bool any = false;

	if (!f || atomic_load_explicit(&f->nr, memory_order_relaxed) == 0)
		return false;
	*hit = (struct dc_fault_hit){ .len = UINT64_MAX };
	pthread_mutex_lock(&f->lock);
	hit->generation = atomic_load(&f->generation);
	for (unsigned int i = 0; i < atomic_load(&f->nr); i++) {
		struct rule *r = &f->rule[i];

		if (!applies(r, op, offset, len, f->now_ns(f->host)))
			continue;
		any = true;
		hit->err = r->err ? r->err : hit->err;
		hit->len = dc_min_u64(hit->len, r->len);
		hit->delay_ns = dc_max_u64(hit->delay_ns, r->delay_ns);
	}
	pthread_mutex_unlock(&f->lock);
	return any;
}

uint64_t dc_fault_generation(struct dc_fault *f)
{
	return atomic_load(&f->generation);
}

void dc_fault_delay(struct dc_fault *f, const struct dc_fault_hit *hit)
{
	if (hit->delay_ns == UINT64_MAX) {
		pthread_mutex_lock(&f->lock);
		while (atomic_load(&f->generation) == hit->generation)
			pthread_cond_wait(&f->changed, &f->lock);
		pthread_mutex_unlock(&f->lock);
	} else if (hit->delay_ns > 0) {
		struct timespec ts = { .tv_sec = (time_t)(hit->delay_ns / 1000000000),
				       .tv_nsec = (long)(hit->delay_ns % 1000000000) };

		nanosleep(&ts, NULL);
	}
}
