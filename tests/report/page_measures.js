// Measured in the page by test_report_in_browser.py; the value of this expression is what it finds.
(async () => {
  dispatchEvent(new Event("beforeprint")); // draws charts that are far below
  await new Promise((done) => setTimeout(done, 1500));
  const behind = (e) => { // backgrounds of parents show through one that is not opaque
    if (!e) return [255, 255, 255];
    const [r, g, b, a = 1] = getComputedStyle(e).backgroundColor.match(/[\d.]+/g).map(Number);
    if (a === 1) return [r, g, b];
    return behind(e.parentElement).map((below, at) => a * [r, g, b][at] + (1 - a) * below);
  };
  const channels = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => { // relative luminance of WCAG
    const [r, g, b] = colour.map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (e, property) => {
    const [a, b] = [light(channels(getComputedStyle(e)[property])), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const width = document.documentElement.clientWidth;
  const controls = all("a, summary, input, .scroll");
  return {
    width,
    page_width: document.documentElement.scrollWidth,
    charts: all(".chart").length,
    drawn: all(".chart").filter((e) => e.querySelector("svg.main-svg")).length,
    cut_off: all(".chart .main-svg").filter((e) => e.getBoundingClientRect().right > width + 1).length,
    contrast: Math.min(...all("p, h1, h2, h3, th, td, a:not(.skip), summary, figcaption, .legend li")
      .map((e) => contrast(e, "color"))),
    tick_contrast: Math.min(...all(".chart text").filter((e) => e.textContent.trim()).map((e) => contrast(e, "fill"))),
    controls: controls.length,
    unreachable: controls.filter((e) => e.tabIndex < 0).length,
  };
})();
