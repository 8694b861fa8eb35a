-- Read the logs of jobs from the place of a reader on. KEYS: none. ARGV: 1 how many entries at most, 2 how many bytes
-- of pieces at most, then per log: id, the index of the last piece that the reader has, and the run of that piece ('' if
-- the reader does not know it). One entry is returned even if it is larger.
-- Returns per log a flat list: '1' if the log does not have the reader's place, the run of its place, and then per
-- entry its id (index of its last piece, and run), its JSON array ('' for a restart mark), and the head of the response
-- that begins with it or ''. The entries of a log without the place are those from the beginning.
-- Redis can lose the newest pieces in a crash or a failover, and the next attempt then takes their indexes again.
local most, most_bytes, answer = tonumber(ARGV[1]), tonumber(ARGV[2]), {}

local function run_of(entries)
  return entries[1] and string.match(entries[1][1], '%d+$')
end

-- The run of the reader's place, and whether the log has lost it.
local function place(id, key, after, run)
  local record = try('HGET', keys.job .. id, 'pc')
  if run ~= '' and run == string.match(type(record) == 'string' and record or '', '%d+$') then return run, false end
  local found = run_of(try('XRANGE', key, whole(after) .. '-0', '+', 'COUNT', 1))
  if run == '' then return found or '', not found end
  -- The log ends before the place. That is no sign as long as the run may go on.
  found = found or run_of(try('XREVRANGE', key, '+', '-', 'COUNT', 1)) or run
  return run, found ~= run
end

for i = 3, #ARGV, 3 do
  local key, after, run, lost = keys.pieces .. ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], false
  if after > 0 then
    run, lost = place(ARGV[i], key, after, run)
    if lost then after, run = 0, '' end
  end
  local flat, bytes = {lost and '1' or '', run}, 0
  repeat
    -- A few at a time: what is not returned costs little, even if the entries are large.
    local found = try('XRANGE', key, whole(after + 1) .. '-0', '+', 'COUNT', 16)
    for _, entry in ipairs(found.err and {} or found) do
      local text = entry[2][2]
      bytes = bytes + #text
      if #flat > 2 and (#flat == 3 * most + 2 or bytes > most_bytes) then
        found = {}
        break
      end
      after = tonumber(string.match(entry[1], '^%d+'))
      flat[#flat + 1], flat[#flat + 2] = entry[1], text
      flat[#flat + 1] = entry[2][3] == 'h' and entry[2][4] or ''
    end
  until #found < 16
  answer[#answer + 1] = flat
end
return answer
