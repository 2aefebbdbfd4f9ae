// Light or dark: as the system says, or as the button was last pressed.

/** Have the button change it; changed is called when curves are to be drawn in other colours. */
export function themeButton(button, changed) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = localStorage.getItem("theme");
  if (chosen) root.dataset.theme = chosen;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    changed();
  });
  system.addEventListener("change", changed);
}
