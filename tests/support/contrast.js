// SPDX-License-Identifier: Apache-2.0
// The contrast of each visible text with what it stands on, as WCAG 2 counts it, of colours without gradients.
() => {
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((one) => one / 255).map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || element.closest("script, style, [hidden], :disabled") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = channels(element.closest("svg") ? style.fill : style.color).slice(0, 3);
    const [low, high] = [luminance(ink), luminance(behind(element))].sort((one, other) => one - other);
    found.push({ text: text.slice(0, 40), contrast: (high + 0.05) / (low + 0.05) });
  }
  return found;
}
