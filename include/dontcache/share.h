/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Dividing an amount by weights, with a least and a most for each. Pure. */
#ifndef DONTCACHE_SHARE_H
#define DONTCACHE_SHARE_H

#include <stddef.h>

struct dc_share {
	double weight;	 /* >= 0 */
	double min, max; /* min <= max */
	double out;
};

/**
 * Each gets its min; the rest is divided by weight, nobody above its max; what those do not take goes to
 * the others (max-min fairness, "water-filling"). If the mins alone exceed the total, each gets its
 * part of them.
 * @return what is left because everybody has its max.
 */
double dc_share_out(struct dc_share *share, size_t n, double total);

/** The same for a total that is divided already: gives out `rest` on top of each `out`, up to a new max. */
double dc_share_more(struct dc_share *share, size_t n, double rest);

#endif
