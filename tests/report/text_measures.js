// Measured in the page by test_report_in_browser.py: text that leaves its chart, touches its neighbour or breaks in a word.
(async () => {
  document.querySelectorAll("details").forEach((e) => { e.open = true; });
  dispatchEvent(new Event("beforeprint"));
  await new Promise((done) => setTimeout(done, 1500));
  const all = (selector) => [...document.querySelectorAll(selector)];
  const box = (e) => e.getBoundingClientRect();
  const outside = all(".chart").flatMap((chart) => [...chart.querySelectorAll("text")]
    .filter((text) => box(text).width && (box(text).left < box(chart).left - 1 || box(text).right > box(chart).right + 1)));
  const ticks = all(".chart").map((chart) => [...chart.querySelectorAll(".xtick text")].map(box));
  const touching = ticks.flatMap((of) => of.slice(1).filter((one, at) => one.left < of[at].right + 2));
  const broken = all("th, td, p").filter((e) => {
    const walker = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), range = document.createRange();
    let last = null, mark = " ";
    for (let node; (node = walker.nextNode());) {
      for (let at = 0; at < node.data.length; at++) {
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const top = range.getBoundingClientRect().top;
        if (last !== null && top > last + 8 && !/[\s._/=-]/.test(mark + node.data[at])) return true;
        [last, mark] = [top, node.data[at]];
      }
    }
    return false;
  });
  return {
    outside: outside.map((e) => e.textContent),
    touching: touching.length,
    broken: broken.map((e) => e.textContent.trim().slice(0, 60)),
    page_width: document.documentElement.scrollWidth,
  };
})();
