"""Remove each guard in gate/mutants.txt from a copy of the program, one at a time: the tests must notice.

    python3 .ci/mutants.py [NAME ...]

The file says how a mutant is written. Exit 1 when one survives, does not apply or names tests that are not there.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GATE = os.path.join(ROOT, 'gate')
SECONDS = 120  # a mutant that hangs is noticed too


def mutants():
    """Yield (name, file, tests, old, new) for each entry."""
    with open(os.path.join(GATE, 'mutants.txt'), encoding='utf-8') as file:
        entries = re.split(r'^== ', file.read(), flags=re.MULTILINE)[1:]
    for entry in entries:
        name, *lines = entry.rstrip('\n').split('\n')
        parts = {mark: [line[2:] for line in lines if line[:1] == mark] for mark in '@?-+'}
        known = [line for line in lines if line.strip() and line[:1] not in parts]
        if known or not parts['-'] or not parts['?']:
            sys.exit('mutants.txt: %s: a line that is none of ours, or no text to find, or no tests' % name)
        yield (name, (parts['@'] or ['gwt_gate.py'])[0], ' '.join(parts['?']).split(), '\n'.join(parts['-']),
               '\n'.join(parts['+']))


def tests(directory, patterns):
    """Run the tests whose names hold one of the patterns; return the exit code, how many ran, and the output."""
    words = [word for pattern in patterns for word in ('-k', pattern)]
    try:
        done = subprocess.run([sys.executable, '-m', 'unittest', '-f', *words, 'test_gwt_gate'], cwd=directory,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS, env={**os.environ, 'PYTHONDONTWRITEBYTECODE': ''})
    except subprocess.TimeoutExpired:
        return 1, 1, 'no end within %d s' % SECONDS
    output = done.stdout.decode('utf-8', 'replace')
    ran = re.search(r'^Ran (\d+) test', output, re.MULTILINE)
    return done.returncode, int(ran.group(1)) if ran else -1, output


def copy_of(gate, directory):
    """Copy the program, and the README beside it, whose tables are tested too; return where it lies."""
    shutil.copy(os.path.join(ROOT, 'README.md'), directory)
    return shutil.copytree(gate, os.path.join(directory, 'gate'))


def attempt(mutant, gate):
    """Return what is wrong with a mutant, '' when the tests notice it."""
    _, target, patterns, old, new = mutant
    with tempfile.TemporaryDirectory(prefix='gwt-gate-mutant-') as directory:
        copy = copy_of(gate, directory)
        path = os.path.join(copy, target)
        with open(path, encoding='utf-8') as file:
            text = file.read()
        if text.count(old) != 1:
            return 'its text stands in %s %d times, not once' % (target, text.count(old))
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text.replace(old, new))
        code, ran, output = tests(copy, patterns)
    if ran == -1:
        return 'the tests do not even start:\n' + output[-500:]
    if ran == 0:
        return 'no test is called %s' % ' or '.join(patterns)
    return '' if code else 'it survives %d tests' % ran


def main(names):
    chosen = [mutant for mutant in mutants() if not names or mutant[0] in names]
    patterns = sorted({pattern for mutant in chosen for pattern in mutant[2]})
    with tempfile.TemporaryDirectory(prefix='gwt-gate-mutants-') as directory:
        gate = copy_of(GATE, directory)
        code, ran, output = tests(gate, patterns)  # its byte code is good for all copies
        if code or ran < 1:
            sys.exit('without any mutant the tests must pass:\n' + output[-2000:])
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            found = pool.map(attempt, chosen, [gate] * len(chosen))
            faults = {mutant[0]: fault for mutant, fault in zip(chosen, found) if fault}
    for name, fault in faults.items():
        print('%s: %s' % (name, fault))
    print('mutants: %d noticed, %d not' % (len(chosen) - len(faults), len(faults)))
    return 1 if faults or not chosen else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
