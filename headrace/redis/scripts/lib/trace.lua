-- The trace id in a `traceparent` of a Celery client, by the rules of headrace/jobs/trace_context.py; nil if it names none.
local function trace_id_in(parent)
  if type(parent) ~= 'string' or #parent > 256 then return nil end
  local pattern = '^[ \t]*([0-9a-f]+)%-([0-9a-f]+)%-([0-9a-f]+)%-([0-9a-f]+)(.-)[ \t]*$'
  local version, id, span, flags, more = string.match(parent, pattern)
  if not version or #version ~= 2 or #id ~= 32 or #span ~= 16 or #flags ~= 2 then return nil end
  if more ~= '' and (version == '00' or not string.find(more, '^%-[^\n]*$')) then return nil end
  if version == 'ff' or not string.find(id, '[^0]') or not string.find(span, '[^0]') then return nil end
  return id
end
