#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Shows that the tests can fail: applies one mutation at a time to a copy of the tree, builds the one program that
should notice (for a test of the plugin: the plugin), and demands that it does; and that it passes without the
mutation.

    tests/mutants/run.py [--fast] [-l] [-v] [--jobs N] [NAME...]

Without names: all of table.py, or with --fast those that ./check runs. Failures: a mutant that survives, one that
does not build, and one whose text is no longer in the source (then table.py needs the new text).
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from harness import paths                               # noqa: E402
from harness.testing import requires, workdir           # noqa: E402
from table import MUTANTS                               # noqa: E402

FEWEST_SECONDS = 20                     # a program may take so long, or ten times what it takes unmutated


def files_of_the_tree():
    """What belongs to the tree, new files included; without git: everything but build/."""
    done = subprocess.run(['git', '-C', ROOT, 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                          capture_output=True, check=False)
    if done.returncode == 0:
        return [name for name in os.fsdecode(done.stdout).split('\0') if name]
    found = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [b for b in below if b not in ('build', '.git', '__pycache__')]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return found


def copy_tree(target):
    for name in files_of_the_tree():
        source, copy = os.path.join(ROOT, name), os.path.join(target, name)
        if os.path.isfile(source):      # git also lists what was removed
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(source, copy)


class Tree:
    """A copy of the tree, with a build folder for the engine, not optimised, which builds in seconds; and one for
    the plugin when it is needed."""

    def __init__(self, folder, jobs):
        self.source = os.path.join(folder, 'tree')
        self.folder = folder
        self.jobs = jobs
        copy_tree(self.source)

    def configured(self, kind):
        """The build folder: 'engine' or 'plugin'."""
        build = os.path.join(self.folder, kind)
        if not os.path.exists(build):
            options = {'engine': ['-DDC_PLUGIN=OFF', '-DDC_AUDIT=ON'],
                       'plugin': ['-DGANESHA_SRC=' + os.path.join(paths.BUILD, 'deps', 'ganesha', 'src')]}[kind]
            done = subprocess.run(['cmake', '-S', self.source, '-B', build, '-DCMAKE_BUILD_TYPE=Debug', *options],
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit('configuring the copy failed:\n' + done.stdout[-2000:] + done.stderr[-2000:])
        return build

    def build(self, target):
        """None, or what the compiler said."""
        kind, name = ('plugin', 'fsaldontcache') if target.endswith('.py') else ('engine', target)
        done = subprocess.run(['cmake', '--build', self.configured(kind), '--target', name, '-j', str(self.jobs)],
                              capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else (done.stdout + done.stderr)[-3000:]

    def command(self, target):
        if target.endswith('.py'):
            return [sys.executable, os.path.join(self.source, target)]
        for folder in ('unit', 'model'):
            path = os.path.join(self.configured('engine'), 'tests', folder, target)
            if os.path.exists(path):
                return [path]
        raise FileNotFoundError(target)

    def run(self, mutant, timeout):
        """(exit code or None for a hang, seconds, the last words)."""
        start = time.monotonic()
        env = {**os.environ, 'DONTCACHE_PLUGIN_DIR': os.path.join(self.folder, 'plugin', 'plugins')}
        process = subprocess.Popen([*self.command(mutant.target), *mutant.args], cwd=self.folder, text=True, env=env,
                                   errors='replace', stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output, _ = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, output = None, ''
            process.terminate()         # a test of the plugin has disks to give back
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
        finally:
            try:
                os.killpg(process.pid, 9)   # the model test runs its sequences in children
            except ProcessLookupError:
                pass
            process.wait()
            process.stdout.close()
        return code, time.monotonic() - start, output

    def edit(self, edits):
        """Returns {path: original text}; raises ValueError where a text is not there exactly once."""
        originals = {}
        try:
            for name, old, new in edits:
                path = os.path.join(self.source, name)
                with open(path, encoding='utf-8') as f:
                    text = f.read()
                originals.setdefault(path, text)
                if text.count(old) != 1:
                    raise ValueError('%s: the text to replace is there %d times, not once:\n%s' % (
                        name, text.count(old), old))
                self.write(path, text.replace(old, new))
        except BaseException:
            self.restore(originals)
            raise
        return originals

    def restore(self, originals):
        for path, text in originals.items():
            self.write(path, text)

    @staticmethod
    def write(path, text):
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)


def first_words(output):
    """Of what a test said, the line that tells most."""
    lines = [line.strip() for line in output.splitlines()]
    for sign in ('AssertionError', 'FAILED', 'fail', 'assert', 'check', 'rror'):
        for line in lines:
            if sign in line:
                return line[:120]
    return lines[-1][:120] if lines else ''


def try_mutant(tree, mutant, usual, verbose=False):
    """(verdict, remark); the verdict is 'killed' or a word for what is wrong."""
    try:
        originals = tree.edit(mutant.edits)
    except (ValueError, OSError) as error:
        return 'NOT FOUND', str(error)
    try:
        problem = tree.build(mutant.target)
        if problem:
            return 'DOES NOT BUILD', problem
        code, took, output = tree.run(mutant, max(FEWEST_SECONDS, 10 * usual))
    finally:
        tree.restore(originals)
    if verbose:
        print('\n'.join('    | ' + line for line in output.splitlines()[-12:]))
    if code is None:
        return 'killed', 'hangs'
    if code == 0:
        return 'SURVIVED', '%s passes all the same' % mutant.target
    if code == 77:
        return 'SKIPPED', '%s skips here' % mutant.target
    return 'killed', '%.1f s, %s' % (took, 'signal %d' % -code if code < 0 else first_words(output))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', help='only these (parts of names)')
    parser.add_argument('--fast', action='store_true', help='those that ./check runs')
    parser.add_argument('-l', '--list', action='store_true', help='list them')
    parser.add_argument('-v', '--verbose', action='store_true', help='show what the killing test says')
    parser.add_argument('--jobs', type=int, default=2, help='of the compiler')
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if (m.fast or not options.fast) and
              (not options.names or any(part in m.name for part in options.names))]
    if options.list:
        for m in chosen:
            print('%-30s %-12s %s%s' % (m.name, m.target, m.what, ' (fast)' if m.fast else ''))
        return 0
    if not chosen:
        print('no such mutant', file=sys.stderr)
        return 1
    requires(paths.find_program('cmake'), 'cmake is not installed')
    wrong = []
    with workdir('mutants') as folder:
        tree = Tree(folder, options.jobs)
        usual, skipped = {}, {}
        for m in chosen:                # first all of the unmutated ones: a broken test kills everything
            test = m.target, m.args
            if test in usual or test in skipped:
                continue
            problem = tree.build(m.target)
            code, took, output = (1, 0, problem) if problem else tree.run(m, 300)
            usual[test] = took
            name = ' '.join((os.path.basename(m.target), *m.args))
            print('%-30s %s (%.1f s)' % (name, {0: 'passes', 77: 'skips'}.get(code, 'FAILS'), took), flush=True)
            if code == 77:
                skipped[test] = output
            elif code:
                print(output[-3000:])
                wrong.append(name + ' without a mutation')
        for m in chosen if not wrong else ():
            if (m.target, m.args) in skipped:
                print('SKIP: %s: %s skips here' % (m.name, m.target))
                continue
            verdict, remark = try_mutant(tree, m, usual[m.target, m.args], options.verbose)
            print('%-30s %-14s %s' % (m.name, verdict, remark), flush=True)
            if verdict != 'killed':
                wrong.append(m.name)
    print('%d mutants, %d wrong%s' % (len(chosen), len(wrong), ': ' + ', '.join(wrong) if wrong else ''))
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
