// Not a module: it runs before the first paint, so that neither a chosen theme nor a folded sidebar flashes.
"use strict";

(() => {
  const names = { auto: "same as the system", light: "light", dark: "dark" };
  const kept = localStorage.getItem("trigraph.theme");
  let theme = kept in names ? kept : "auto";

  function apply() {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button === null) return;
    button.setAttribute("aria-label", `Theme: ${names[theme]}`);
    button.title = `Theme: ${names[theme]}`;
    button.querySelector("use").setAttribute("href", `#icon-${theme}`);
  }

  apply();
  document.documentElement.classList.toggle("folded", localStorage.getItem("trigraph.sidebar") === "folded");
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      const order = Object.keys(names);
      theme = order[(order.indexOf(theme) + 1) % order.length];
      localStorage.setItem("trigraph.theme", theme);
      apply();
    });
  });
})();
