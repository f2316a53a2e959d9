/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The pacing law and the rate that it needs: see dontcache/pacing.h. Nothing here keeps state. */
#include "dontcache/pacing.h"

#include <math.h>

#define NS_PER_S 1e9
#define SAMPLE_MIN_NS 10000000ULL

double dc_pace_linear(const struct dc_pace_in *in)
{
	double rate = in->completed + (in->setpoint - in->dirty) / DC_PACE_TAU_S;

	if (in->dirty >= in->limit)
		return 0;
	return fmax(rate, in->completed / 8);
}

void dc_rate_begin(struct dc_rate *r, uint64_t now)
{
	if (r->since == 0)
		r->since = now;
}

/* Of the sample being taken, ns. */
static uint64_t lasted(const struct dc_rate *r, uint64_t now)
{
	return r->before + (r->since != 0 && now > r->since ? now - r->since : 0);
}

void dc_rate_end(struct dc_rate *r, uint64_t now)
{
	r->before = lasted(r, now);
	r->since = 0;
}

void dc_rate_add(struct dc_rate *r, uint64_t now, uint64_t pages)
{
	uint64_t ns = lasted(r, now);
	double dt, sample;

	r->pages += (double)pages;
	if (ns < SAMPLE_MIN_NS)
		return;
	dt = (double)ns / NS_PER_S;
	sample = r->pages / dt;
	if (r->per_s == 0)
		r->per_s = sample;
	else
		r->per_s += (sample - r->per_s) * (1 - exp(-dt / DC_RATE_PERIOD_S));
	if (r->since != 0)
		r->since = now;
	r->before = 0;
	r->pages = 0;
}

double dc_rate_now(const struct dc_rate *r, uint64_t now)
{
	double dt = (double)lasted(r, now) / NS_PER_S;

	if (dt <= DC_RATE_PERIOD_S)
		return r->per_s;
	/* Nothing for longer than the mean reaches back: it is at most what would just have come. */
	return fmin(r->per_s, (r->per_s * DC_RATE_PERIOD_S + r->pages) / dt);
}
