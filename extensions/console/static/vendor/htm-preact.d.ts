// The types of the packages, for `make lint`; browsers do not read this file.
export * from 'preact/hooks';
export { h, render, Component, createContext } from 'preact';
export const html: (strings: TemplateStringsArray, ...values: any[]) => any;
