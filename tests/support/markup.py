"""Texts that a page must show as text: markup, scripts, addresses, escapes and odd letters.

Each has at most 128 characters, so that it can be the name of a task or of a queue.
"""

# Would run in a page that takes a text for markup. The browser reports the dialog.
CALL = "alert(document.domain)"

MARKUP = [
    # Elements that load or run something.
    f"<script>{CALL}</script>",
    f"<ScRiPt>{CALL}</sCrIpT>",
    f"<scr<script>ipt>{CALL}</script>",
    "<script src=//evil.test/x.js></script>",
    "<script src='data:text/javascript,alert(1)'></script>",
    f'<script type="module">{CALL}</script>',
    f"<img src=x onerror={CALL}>",
    f'<img src="x" onerror="{CALL}" ',
    f"<img/src/onerror={CALL}>",
    f"<IMG SRC=x OnErRoR={CALL}>",
    f"<svg onload={CALL}>",
    f"<svg/onload={CALL}//",
    f"<svg><script>{CALL}</script></svg>",
    f"<svg><animate onbegin={CALL} attributeName=x dur=1s>",
    "<svg><use href='data:image/svg+xml,<svg id=x onload=alert(1)>#x'/></svg>",
    f"<math><mi xlink:href='javascript:{CALL}'>x</mi></math>",
    f"<body onload={CALL}>",
    f"<details open ontoggle={CALL}>",
    f"<video><source onerror={CALL}></video>",
    f"<audio src=x onerror={CALL}>",
    f"<input autofocus onfocus={CALL}>",
    f"<select autofocus onfocus={CALL}><option>x",
    f"<marquee onstart={CALL}>x</marquee>",
    f"<iframe src='javascript:{CALL}'></iframe>",
    f"<iframe srcdoc='<script>parent.{CALL}</script>'></iframe>",
    "<object data='javascript:alert(1)'></object>",
    "<embed src='data:text/html,<script>alert(1)</script>'>",
    "<link rel=stylesheet href=//evil.test/x.css>",
    "<style>@import '//evil.test/x.css'; body { display: none }</style>",
    "<base href='//evil.test/'>",
    "<meta http-equiv=refresh content='0;url=//evil.test/'>",
    "<form action='//evil.test/'><button>Sign in</button></form>",
    f"<a href='javascript:{CALL}'>click</a>",
    f"<template><img src=x onerror={CALL}></template>",
    f"<noscript><p title='</noscript><img src=x onerror={CALL}>'>",
    # Ends of what may surround the text.
    f"'\"><img src=x onerror={CALL}>",
    f'" onmouseover="{CALL}" x="',
    f"' autofocus onfocus='{CALL}",
    f"</title><script>{CALL}</script>",
    f"</textarea><script>{CALL}</script>",
    f"--><script>{CALL}</script><!--",
    f"]]><script>{CALL}</script>",
    f"</script><script>{CALL}</script>",
    # Addresses and templates.
    f"javascript:{CALL}",
    f"JaVaScRiPt://%0a{CALL}",
    "data:text/html,<script>alert(1)</script>",
    "//evil.test/%2e%2e/?#x",
    f"${{{CALL}}}",
    "{{constructor.constructor('alert(1)')()}}",
    "__proto__",
    # Escapes that stay as they are.
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;&#x41;&amp;&nbsp;",
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    # Characters.
    "\x1b[2J\x1b[31mred\x1b]2;title\x07\x9b2J",
    "a\u202egpj.exe\u2066\u2067\u200f\u061c",
    "".join(map(chr, [*range(0x01, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, *range(0x80, 0xA0)])),
    "zero\u200bwidth\ufeff, e\u0301, 👩‍👩‍👧, \U000e0041\ufffd",
    "Z\u0335\u0321\u0322\u0327" + "\u0334\u0316" * 30,
    "'; drop table jobs; -- \\ \" ` $1 %s {0}",
]
assert len(set(MARKUP)) == 60
assert all(0 < len(each) <= 128 for each in MARKUP)
