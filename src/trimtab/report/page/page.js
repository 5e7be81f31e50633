"use strict";
// Draws each chart when it comes near the screen, in the reader's colours, and moves it with its slider.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const themed = (layout) => {
    const ink = colour("--ink"), rule = colour("--rule"), paper = colour("--paper");
    const styled = {
      ...layout,
      paper_bgcolor: paper,
      plot_bgcolor: paper,
      font: { ...layout.font, color: ink },
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: rule, font: { color: ink } },
    };
    if (touch.matches) styled.dragmode = false; // a finger scrolls the page
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) styled[name] = { ...layout[name], gridcolor: rule, linecolor: rule };
    }
    return styled;
  };

  const charts = [...document.querySelectorAll("figure")].map((figure) => {
    const { figure: { data, layout }, frames, labels } = JSON.parse(figure.querySelector("script").textContent);
    const place = figure.querySelector(".chart"), slider = figure.querySelector("input");
    const state = { place, drawn: false };
    state.draw = () => {
      state.drawn = true;
      if (slider && frames.length) data.forEach((trace, at) => { trace.x = frames[slider.value][at]; });
      return Plotly.react(place, data, themed(layout), { responsive: true, displayModeBar: false });
    };
    if (slider) {
      slider.addEventListener("input", () => {
        const label = labels[slider.value];
        figure.querySelector("output").textContent = label;
        slider.setAttribute("aria-valuetext", label); // the position is no step
        Plotly.restyle(place, { x: frames[slider.value] });
      });
    }
    return state;
  });

  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find(({ place }) => place === entry.target);
      if (entry.isIntersecting && !chart.drawn) chart.draw();
    }
  }, { rootMargin: "800px" });
  charts.forEach(({ place }) => near.observe(place));
  dark.addEventListener("change", () => charts.filter(({ drawn }) => drawn).forEach((chart) => chart.draw()));
  addEventListener("beforeprint", () => charts.filter(({ drawn }) => !drawn).forEach((chart) => chart.draw()));
})();
