-- How jobs have ended, and no more than that: per id 0 where it is unknown or of another key, its state where it has not ended, else
-- {state, attempts, timings, created, ended, result type, error, stored result, result in the record, Celery result where the result
-- is in none of these}; '' for what there is not.
-- KEYS: none. ARGV: 1 the API key whose jobs are known ('' for all; -: nobody's), then ids.
local FIELDS, OWNER = {'s', 'a', 'tm', 'c', 'en', 'rt', 'e', 'rr', 'r', 'ky'}, 10

local answer = {}
for i = 2, #ARGV do
  local row = read(ARGV[i], unpack(FIELDS))
  local state = row[1]
  if not state or not (ARGV[1] == '' or ARGV[1] == (row[OWNER] or '-')) then
    answer[#answer + 1] = 0
  elseif not FINAL[state] then
    answer[#answer + 1] = state
  else
    for k = 2, #FIELDS do row[k] = row[k] or '' end
    local elsewhere = state == 's' and row[8] == '' and row[9] == ''
    local meta = elsewhere and redis.pcall('GET', META .. ARGV[i]) or ''
    row[OWNER] = type(meta) == 'string' and meta or ''
    answer[#answer + 1] = row
  end
end
return answer
