import sys
sys.path[:0]=["/tmp/wN","/tmp/wN/tests"]
from support.mapping import *
from tcjit.mapping.extract import extract
from tcjit.mapping.isl import context
from tcjit.mapping.nest.statement import affine_statement
from tcjit.mapping.nest.restrict import restrict, verify_restrict
from tcjit.mapping.nest.split_residues import *
from tcjit.mapping.nest.merge_dims import *
from tcjit.mapping.nest.nest import *
from tcjit.mapping.nest.tile import *
import time
def st(text, shapes):
    a=extract(program(text,shapes),None)
    t={x.name:x for x in a.tensors}
    c=context()
    return [(affine_statement(f"S{i}",x,t,a.values,c),t[x.tensor].dtype,a.values) for i,x in enumerate(a.assignments)]
P=[