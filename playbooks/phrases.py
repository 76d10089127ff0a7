"""Phrases that are spelled one way before a text is cut into words. The order counts: the special ones come first."""

from __future__ import annotations

import re

# GE, LE, GT and LT stand for comparisons; `when` and a comma open clauses; insteadof and comparedto are relations.
PHRASES = [
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\bzb[- ]?h1\b", "zbh1"),
        (r"\bzero[- ]bubble\b", "zerobubble"),
        (r"\bone[- ]f[- ]one[- ]b\b", "1f1b"),
        (r"\bat the same time\b", "simultaneously"),
        (r"\b(is|are) prefer(able|red) (to|over)\b", "prefer insteadof"),
        (r"\b(fall|drop|sink|go|get|come|stay|remain)(s|es)? (below|under)\b", " LT "),
        (r"\b(rise|grow|climb|go|get|come|stay|remain)(s|es)? (above|over)\b", " GT "),
        (r"\bsame (?=(number|time|amount|count|size|length)s?\b)", "equal "),
        (r",? ?(and )?\bthen\b", " , then "),
        (r",? (?:and|but) not (?=(by|on|to|from|the|a|in|with|for)\b)|, not (?=\w)", " insteadof "),
        (r"\b(at least|at most)? ?as (?:many|much) (\w+) as\b", r"\2 \1 comparedto"),
        (r"\b(at least|at most) comparedto\b", r"\1"),
        (r"\bas (\w+) as possible\b", r"\1"),
        (r"\b(prefer\w*|favou?r\w*|prioriti[sz]\w*|chosen?|choose|pick\w*)\b(.{1,40}?) (over|to)\b", r"\1\2 insteadof"),
        (r"\b(out of|away from|off of)\b|(?<!turn )(?<!switch )\boff (?=(the|a|its)\b)", "from "),
        (r"(er|more|less), (?=(\w+er|more|less)\b)", r"\1 and "),
        (r"\b(leav\w+|left) out\b", "omit"),
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"'s?\b", ""),
        (r"\ball[- ]?reduc(e[sd]?|ing|tions?)\b", "allreduce"),
        (r"\bgradient reductions?\b", "gradient allreduce"),
        (r"\breductions? of (the )?gradients?\b", "gradient allreduce"),
        (r"\breduc(e|tion)[_ -]streams?\b", "reduce_stream"),
        (r"\b(the|a|each|every|gradient) reduce\b", r"\1 allreduce"),
        (r"\bbuckets?[_ -]sizes?\b|\bsizes? of (the |each |every |all )?(\w+ )?buckets?\b", "bucket"),
        (r"\bmicro[- ]batch", "microbatch"),
        (r"\bnum_microbatches\b", "microbatches"),
        (r"\bwarm[- ]?up\b", "warmup"),
        (r"\bcool[- ]?down\b", "cooldown"),
        (r"\bre-(?=[a-z])", "re"),
        (r"\bidle (time|slots?|gaps?)\b", "bubble"),
        (r"\bpay(s|ing)? off\b|\bis worth(while| it)?\b|\bpays\b", "helps"),
        (r"\b(point[- ]to[- ]point|p2p)\b", "p2p"),
        (r"\bin order to\b|\bso as to\b|\bso that\b", "to"),
        (r"\b(turn|switch)(s|ed|ing)? on\b", "enable"),
        (r"\b(turn|switch)(s|ed|ing)? off\b", "disable"),
        (r"\b(instead of|rather than|in place of|in lieu of|as opposed to)\b", " insteadof "),
        (r"\bthe other way (a?round)\b", "not"),
        (r"\bno longer\b", "not"),
        (r"\bat once\b", "immediate"),
        (r"(\d+)( [a-z%]+)? or (more|greater|larger|above|higher)\b", r" GE \1\2"),
        (r"(\d+)( [a-z%]+)? or (less|fewer|smaller|below|lower)\b", r" LE \1\2"),
        (r"\b(no|not) (more|greater|larger|higher|bigger) than\b|\bat (the )?most\b|\bup to\b|<=|≤", " LE "),
        (r"\b(no|not) (less|fewer|smaller|lower) than\b|\bat (the )?least\b|>=|≥", " GE "),
        (r"\ba maximum of\b|\bnot exceed(s|ing|ed)?\b", " LE "),
        (r"\ba minimum of\b", " GE "),
        (
            r"\b(more|greater|larger|bigger|higher) than\b|\bexceed(s|ing|ed)?\b|\babove\b|\bover(?= (about )?\d)"
            r"|>",
            " GT ",
        ),
        (r"\b(less|fewer|smaller|lower) than\b|\bbelow\b|\bunder(?= (about )?\d)|<", " LT "),
        (r"\bahead of\b|\bprior to\b|\bearlier than\b|\bpreced(es?|ing)(?= (the|a|stage|every|each))", " before "),
        (r"\blater than\b|\bsubsequent to\b|\bbehind\b", " after "),
        (r"\b(unless|except (when|if|where))\b", " , not "),
        (r"\bonce(?= (per|a|every|each|in)\b)", "1 x"),
        (r"\b(as soon as|as long as|provided that|provided|in case|whenever|when|while|once|where|if)\b", " , when "),
        (r"\b(because|since|so|but|which|although|though|whereas)\b", " , "),
        (r"\b(a|the) (time|factor) of\b", ""),
        (r"\b(\d+)-way\b", r"\1"),
    )
]
