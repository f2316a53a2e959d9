/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Preload for ganesha.nfsd under a preloaded AddressSanitizer: no message catalogues.
 *
 * The Kerberos library's start-up calls bindtextdomain(), and dead-locks there under the
 * sanitizer's interceptors.
 */
char *bindtextdomain(const char *domain, const char *folder);

char *bindtextdomain(const char *domain, const char *folder)
{
	(void)domain;
	return (char *)folder;
}
