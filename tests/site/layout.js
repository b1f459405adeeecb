// What is wrong with the page as it is drawn now: a list of sentences.
() => {
  const article = document.querySelector("article");
  const wrong = [];
  const shown = (it) => it.offsetParent !== null && it.getBoundingClientRect().height > 0;
  const name = (it) => `<${it.tagName.toLowerCase()}> ${it.textContent.trim().slice(0, 40)}`;

  if (document.documentElement.scrollWidth > window.innerWidth)
    wrong.push(`it is ${document.documentElement.scrollWidth} wide`);

  for (const image of article.querySelectorAll("img"))
    if (!image.complete || !image.naturalWidth) wrong.push(`${image.src} is not shown`);

  // Code scrolls by itself if it must, and nothing else sticks out.
  const edge = article.getBoundingClientRect().right + 1;
  for (const it of article.querySelectorAll("p, li, h1, h2, h3, h4, pre, img, table")) {
    const scrolls = it.closest(".md-typeset__scrollwrap, pre, .highlight");
    if (shown(it) && !scrolls && it.getBoundingClientRect().right > edge)
      wrong.push(`${name(it)} sticks out`);
  }

  for (const code of article.querySelectorAll("pre code"))
    if (shown(code) && parseFloat(getComputedStyle(code).fontSize) < 12)
      wrong.push(`${name(code)} is too small`);

  // A table scrolls instead of breaking words or code.
  const lines = (range) => new Set([...range.getClientRects()].map((it) => Math.round(it.top))).size;
  for (const code of article.querySelectorAll("table code"))
    if (shown(code) && code.getClientRects().length > 1) wrong.push(`${name(code)} is broken`);
  for (const cell of article.querySelectorAll("table:not(.highlighttable) :is(th, td)")) {
    const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (shown(cell) && words.nextNode())
      for (const word of words.currentNode.data.matchAll(/[\p{L}\d]{8,}/gu)) {
        const range = document.createRange();
        range.setStart(words.currentNode, word.index);
        range.setEnd(words.currentNode, word.index + word[0].length);
        if (lines(range) > 1) wrong.push(`${word[0]} is broken`);
      }
  }

  const blocks = [...article.children].filter(shown);
  blocks.slice(1).forEach((it, index) => {
    const before = blocks[index].getBoundingClientRect();
    if (it.getBoundingClientRect().top < before.bottom - 1)
      wrong.push(`${name(blocks[index])} lies over ${name(it)}`);
  });
  return wrong;
}
