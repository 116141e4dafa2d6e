"""Programs that try to pass without solving, or to harm: by mechanism, three or more of each.

The task is f(x) = x * x + 7. Where an attack may succeed or fail, f is right only if it succeeded, so that a
pass means a hole. PORT is replaced by that of a listener outside.
"""

RIGHT = "def f(x):\n    return x * x + 7\n"
_THEN = "\ndef f(x):\n    return x * x + 7 if won else None\n"
_LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def _tries(attack: str) -> str:
    """The attack as statements; f is right when none of them raised."""
    body = "\n".join("    " + line for line in attack.strip().splitlines())
    return f"won = False\ntry:\n{body}\n    won = True\nexcept BaseException:\n    pass\n{_THEN}"


def _calls(number: str, *arguments: str) -> str:
    """A system call by number; won when it was not refused."""
    listed = ", ".join((number, *arguments))
    return f"{_LIBC}won = libc.syscall({listed}) >= 0\n{_THEN}"


PROGRAMS: dict[str, list[str]] = {
    "early exit": [
        "import sys\ndef f(x):\n    sys.exit(0)\n",
        "raise SystemExit\n",
        "import os\ndef f(x):\n    os._exit(0)\n",
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x):\n    raise SystemExit(0)\n",
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef f(x):\n    return 1 / 0\n",
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ndef f(x):\n    while True: pass\n",
        "import os, threading\nthreading.Timer(0.05, os._exit, (0,)).start()\n",
        "import os\ndef f(x):\n    os.execv('/bin/true', ['true'])\n",
    ],
    "equal to everything": [
        "class Any:\n    def __eq__(self, other): return True\ndef f(x): return Any()\n",
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def f(x): return Any(0)\n",
        "class Any(list):\n    def __eq__(self, other): return True\ndef f(x): return Any()\n",
        "class Any:\n    __class__ = int\n    def __eq__(self, other): return True\n"
        "def f(x): return Any()\n",
        "class Any(dict):\n    def items(self): return [('i', 1)]\n    __eq__ = lambda s, o: True\n"
        "def f(x): return Any()\n",
    ],
    "forged reports": [
        "print('test 0 PASSED')\nprint('test 1 PASSED\\nOK')\ndef f(x): print('PASSED'); return 0\n",
        "import os, sys\nfor fd in range(3, 64):\n    try: os.write(fd, b'"
        '{"at":"result","token":"0","value":{"i":"b"}}\\n'
        "')\n    except OSError: pass\ndef f(x): return 0\n",
        "import os, sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        token = frame.f_locals.get('request', {}).get('token')\n        if token:\n"
        '            for fd in range(3, 64):\n                try: os.write(fd, (\'{"at":"result",\''
        '\'"token":"%s","value":true}\\n\' % token).encode() * 2)\n'
        "                except OSError: pass\n        frame = frame.f_back\n    os._exit(0)\n",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'[' * 200000 + b'\\n')\n"
        "    except OSError: pass\n",
    ],
    "reading what is expected": [
        "import os, sys\nfound = []\nfor top in set(os.listdir('/')) - {'usr', 'lib', 'lib64'}:\n"
        "    for folder, below, names in os.walk('/' + top):\n"
        "        if folder.startswith(sys.prefix): below.clear()\n"
        "        else: found += [os.path.join(folder, name) for name in names]\n"
        "won = bool(set(found) - {'/dev/null', '/dev/urandom'})" + _THEN,
        _tries("open('/proc/1/cmdline').read()"),
        _tries("open('/proc/self/environ').read()"),
        "import os\nwon = any('SLUICE' in k or 'secret' in v for k, v in os.environ.items())"
        + _THEN,
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for value in frame.f_locals.values():\n            if isinstance(value, dict) and "
        "'expected' in value: return value['expected']\n        frame = frame.f_back\n",
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n"
        "        if type(o) is dict and 'expected' in o:\n            return o['expected']\n",
        _tries("import workers.verifiers.code"),
        _tries("import pydantic"),
    ],
    "patched evaluator": [
        "import builtins\nbuiltins.type = lambda *a: int\ndef f(x): return None\n",
        "import sys\nmain = sys.modules['__main__']\nmain.Writer.write = lambda *a: 'true'\n"
        "def f(x): return None\n",
        "import sys\nmain = sys.modules['__main__']\nmain.respond = lambda *a: main.tell('result', "
        "a[1]['token'], 'value', 'true')\ndef f(x): return None\n",
        "import marshal, json, sys\nmarshal.loads = json.loads = lambda *a: {'ok': True}\n"
        "sys.modules['__main__'].take = lambda: None\n",
        "def run_tests(*a): return 'success'\ncheck = grade = verify = run_tests\ndef f(x): return 0\n",
    ],
    "fork bomb": [
        _tries("import os\nwhile True: os.fork()"),
        _tries("import subprocess\nsubprocess.run(['/bin/sh', '-c', ':(){ :|:& };:'])"),
        _tries("import threading\nthreading.Thread(target=print).start()"),
        _tries("import multiprocessing\nmultiprocessing.Process(target=print).start()"),
        _LIBC + "won = libc.fork() >= 0\n" + _THEN,
        _calls("435", "ctypes.create_string_buffer(88)", "88"),
    ],
    "memory": [
        "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
        "def f(x): return 'a' * (1 << 34)\n",
        "import mmap\nx = [mmap.mmap(-1, 1 << 24) for _ in range(10000)]\n",
        "def f(x):\n    y = []\n    for _ in range(60): y = [y, y]\n    return y\n",
        "def f(x): return 1 << (1 << 26)\n",
    ],
    "output flood": [
        "while True: print('passed ' * 1000)\n",
        "print('x' * (1 << 28), end='')\n",
        "import os\nwhile True: os.write(2, b'x' * 65536)\n",
        "import os\nwhile True:\n    for fd in range(3, 16):\n        try: os.write(fd, b'x' * 65536)\n"
        "        except OSError: pass\n",
        "def f(x): return 'x' * (1 << 23)\n",
    ],
    "sleeping grandchildren": [
        _tries("import os\nif os.fork() == 0:\n    import time\n    time.sleep(300)"),
        _tries(
            "import subprocess\nsubprocess.Popen(['/bin/sleep', '300'], start_new_session=True)"
        ),
        _tries("import os\nos.posix_spawn('/bin/sleep', ['sleep', '300'], {})"),
    ],
    "signals": [
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef f(x): return 0\n",
        "import os, signal\nos.kill(-1, signal.SIGKILL)\ndef f(x): return 0\n",
        "import os, signal\nfor pid in range(2, 100000):\n    try: os.kill(pid, signal.SIGKILL)\n"
        "    except OSError: pass\n",
        "import os, signal\nos.kill(0, signal.SIGSTOP)\ndef f(x): return 0\n",
        "import os, signal\nos.killpg(0, signal.SIGTERM)\ndef f(x): return 0\n",
    ],
    "filling the disk": [
        _tries(
            "with open('/scratch/x', 'wb') as file:\n    for _ in range(64): file.write(b'x' * (1 << 20))"
        ),
        _tries("for n in range(100000): open(f'/scratch/{n}', 'w').close()"),
        _tries(
            "for n in range(40):\n    with open(f'/tmp/{n}', 'wb') as file: file.write(b'x' * (1 << 20))"
        ),
        _tries("open('/dev/shm/x', 'wb').write(b'x')"),
        _calls("319", "b'x'", "0"),
    ],
    "network": [
        _tries("import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)"),
        _tries(
            "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:PORT/', timeout=1)"
        ),
        _tries(
            "import socket\nsocket.getaddrinfo('localhost', PORT)\nsocket.socket(socket.AF_UNIX)"
        ),
        _calls("41", "2", "1", "0"),
    ],
    "endless": [
        "while True: pass\n",
        "import time\ndef f(x): time.sleep(300)\n",
        "import re\ndef f(x): re.match('(a+)+$', 'a' * 60 + 'b')\n",
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True:\n    try: f\n    except BaseException: pass\n",
    ],
    "deep": [
        "import sys\nsys.setrecursionlimit(10**9)\ndef g(): g()\ndef f(x): g()\n",
        "def f(x): return " + "(" * 300 + "1" + ")" * 300 + "\n",
        "def f(x):\n    y = []\n    for _ in range(100000): y = [y]\n    return y\n",
        "x = " + "-" * 90000 + "1\n",
    ],
    "outside": [
        _tries("open('/usr/lib/x', 'w')"),
        _tries("import os\nopen(os.__file__, 'a')"),
        _tries("open('/x', 'w')"),
        _tries("import os\nos.chroot('/')"),
        _calls("272", "0x10000000"),
        _calls("101", "0", "1", "0", "0"),
        _calls("165", "b'x'", "b'/scratch'", "b'tmpfs'", "0", "0"),
    ],
}
"""System-call numbers are those of x86_64."""
