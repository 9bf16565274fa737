"""Listings of machine code with loops in them."""

from __future__ import annotations

from pathlib import Path

from iosim.code.module import Function, read_module

HEAD = "// function f cc=90 registers=32 frame=16 shared=0 threads=128\n"


NESTED = """
/*0000*/ MOV R1, RZ ;
.L_x_10:
/*0010*/ LDG.E.128 R4, desc[UR8][R2.64] ;  // c=0x742 p=20
.L_x_20:
/*0020*/ HMMA.16816.F32.BF16 R8, R4, R6, R8 ;  // c=0x27e4 p=30
/*0030*/ MUFU.EX2 R9, R8 ;  // c=0x7e4 p=31
/*0040*/ @P0 BRA `(.L_x_20) ;
/*0050*/ STL [R1+0x8], R9 ;
/*0060*/ LDL.64 R10, [R1+0x8] ;
/*0070*/ @!P1 BRA `(.L_x_10) ;
/*0080*/ STG.E desc[UR8][R2.64], R10 ;  // c=0x7e4 p=40
/*0090*/ EXIT ;
/*00a0*/ BRA `(.L_x_a0) ;
"""


def function(text: str, folder: Path) -> Function:
    file = folder / "f.sass"
    file.write_text(HEAD + text, encoding="utf-8")
    return read_module(file).function()
