"""Kernels as raw x86-64 machine code, right and wrong, for the kernel `relu`: out[i] = max(x[i], 0) of float32.

tinygrad's CPU runtime loads a binary that is no ELF file as it is and calls its first byte with the buffers' addresses
in rdi, rsi, …: so a fault needs no compiler to be provoked, and is the same on every machine.
"""

from __future__ import annotations

import struct

HANG = b"\xeb\xfe"  # jmp to itself
SEGFAULT = b"\x31\xc0\x8b\x00"  # xor eax,eax; mov eax,[rax]
ILLEGAL = b"\x0f\x0b"  # ud2
RETURN = b"\xc3"  # writes nothing


def _loop(count: int) -> bytes:
    """`count` elements of relu from [rsi] to [rdi], both moved on."""
    body = (
        b"\xf3\x0f\x10\x06"  # movss xmm0,[rsi]
        b"\xf3\x0f\x5f\xc1"  # maxss xmm0,xmm1
        b"\xf3\x0f\x11\x07"  # movss [rdi],xmm0
        b"\x48\x83\xc6\x04"  # add rsi,4
        b"\x48\x83\xc7\x04"  # add rdi,4
        b"\xff\xc9"  # dec ecx
    )
    back = struct.pack("<b", -(len(body) + 2))
    # xorps xmm1,xmm1; mov ecx,count; body; jnz body
    return b"\x0f\x57\xc9" + b"\xb9" + struct.pack("<i", count) + body + b"\x75" + back


def right(count: int, variant: int = 0) -> bytes:
    """A correct relu; each `variant` is another binary."""
    return _loop(count) + RETURN + b"\x90" * variant


def slow(count: int, rounds: int) -> bytes:
    """A correct relu after `rounds` of an empty loop: about a nanosecond each."""
    return b"\xb8" + struct.pack("<i", rounds) + b"\xff\xc8\x75\xfc" + _loop(count) + RETURN


def zeros(count: int) -> bytes:
    """Writes 0 to `count` elements of the output: one more than it has is past its end."""
    return b"\x31\xc0" + b"\xb9" + struct.pack("<i", count) + b"\xf3\xab" + RETURN  # xor eax,eax; rep stosd


def before_start(count: int) -> bytes:
    """A correct relu that also writes 4 bytes before its output and 4 after its input."""
    early = b"\xc7\x47\xfc" + bytes(4)  # mov dword [rdi-4],0
    return early + _loop(count) + b"\xc7\x06" + bytes(4) + RETURN  # mov dword [rsi],0


def skips(count: int, element: int) -> bytes:
    """A correct relu of all elements but one, which it leaves as it is."""
    skip = b"\x48\x83\xc6\x04\x48\x83\xc7\x04"
    return _loop(element) + skip + _loop(count - element - 1) + RETURN


def overwrites_output(count: int, element: int, bits: int) -> bytes:
    """A correct relu whose element `element` is then set to `bits`, e.g. those of a NaN."""
    return _loop(count) + b"\xc7\x87" + struct.pack("<iI", 4 * (element - count), bits) + RETURN


def overwrites_input(count: int, element: int, bits: int) -> bytes:
    """A correct relu that then sets element `element` of its input to `bits`."""
    return _loop(count) + b"\xc7\x86" + struct.pack("<iI", 4 * (element - count), bits) + RETURN


def differs_between_runs(count: int, element: int) -> bytes:
    """A correct relu whose element `element` is then set to the processor's time stamp."""
    return _loop(count) + b"\x0f\x31" + b"\x89\x87" + struct.pack("<i", 4 * (element - count)) + RETURN
